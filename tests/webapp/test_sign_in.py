"""Signing in: by password, with a second factor, too often in vain; the admin's form knows no other way."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, format_hotp_value, hotp_value
from axes.models import AccessAttempt
from django.core.cache import cache
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from annotation.models import User
from tests.factories import PASSWORD
from webapp.security.forms import is_used_up

SECRET = "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"


STEP = 12345


@pytest.fixture(autouse=True)
def one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """All codes are of one half minute, and what another test used up is not used up here."""
    monkeypatch.setattr("allauth.mfa.totp.internal.auth.yield_hotp_counters_from_time", lambda: iter([STEP]))
    cache.clear()


def code_of(secret: str) -> str:
    """Return the code that an authenticator app shows for a secret."""
    return str(format_hotp_value(hotp_value(secret, STEP)))


def code_now() -> str:
    return code_of(SECRET)


def sign_in(client: Client, name: str = "alice", password: str = PASSWORD, **headers: Any):
    return client.post(reverse("login"), {"username": name, "password": password}, **headers)


def is_in(client: Client) -> bool:
    return client.get(reverse("projects")).status_code == 200


def test_name_and_password_open_and_lead_on(client: Client, alice: User):
    answer = client.post(reverse("login") + "?next=/account/", {"username": "alice", "password": PASSWORD})
    assert (answer.status_code, answer["Location"]) == (302, "/account/")
    assert is_in(client)


@pytest.mark.parametrize("address", ["https://evil.example/", "//evil.example/", "javascript:alert(1)"])
def test_signing_in_leads_to_no_other_site(client: Client, alice: User, address: str):
    answer = client.post(reverse("login"), {"username": "alice", "password": PASSWORD, "next": address})
    assert answer["Location"] == reverse("projects")


def test_who_guesses_waits_and_is_told_how_long(client: Client, alice: User, settings):
    for _ in range(settings.AXES_FAILURE_LIMIT - 1):
        assert sign_in(client, password="wrong").status_code == 200
    answer = sign_in(client, password="wrong")
    assert answer.status_code == 429
    assert "Try again in 15 minutes." in answer.content.decode()
    assert answer["Retry-After"] == "900"
    # Right now even the right password does not open: a guesser must not learn which it is.
    assert sign_in(client).status_code == 429
    assert not is_in(client)
    # Waiting is not made longer by trying, and after it the right password opens.
    AccessAttempt.objects.update(attempt_time=timezone.now() - timedelta(minutes=10, seconds=30))
    assert "Try again in 5 minutes." in sign_in(client).content.decode()
    AccessAttempt.objects.update(attempt_time=timezone.now() - timedelta(minutes=15, seconds=1))
    assert sign_in(client).status_code == 302
    assert is_in(client)


def test_a_guesser_elsewhere_locks_nobody_out_and_others_here_sign_in(alice: User, bob: User, settings):
    for _ in range(settings.AXES_FAILURE_LIMIT):
        sign_in(Client(), password="wrong", REMOTE_ADDR="203.0.113.9")
    assert sign_in(Client(), REMOTE_ADDR="203.0.113.9").status_code == 429
    assert sign_in(Client(), REMOTE_ADDR="198.51.100.7").status_code == 302
    assert sign_in(Client(), name="bob", REMOTE_ADDR="203.0.113.9").status_code == 302


def test_an_office_behind_one_address_signs_in_while_one_of_it_guesses(alice: User, bob: User, settings):
    for _ in range(settings.AXES_FAILURE_LIMIT):
        sign_in(Client(), password="wrong")
    # More posts in a minute than allauth lets one address make by itself.
    answers = [sign_in(Client(), name="bob").status_code for _ in range(40)]
    assert answers == [302] * 40
    assert sign_in(Client()).status_code == 429


def test_an_address_that_the_client_claims_is_not_believed(alice: User, settings):
    for number in range(settings.AXES_FAILURE_LIMIT):
        sign_in(Client(), password="wrong", HTTP_X_FORWARDED_FOR=f"192.0.2.{number}")
    assert sign_in(Client(), HTTP_X_FORWARDED_FOR="192.0.2.99").status_code == 429


def test_behind_a_proxy_that_is_counted_everybody_has_their_own_address(alice: User, settings):
    settings.ALLAUTH_TRUSTED_PROXY_COUNT = 1
    for _ in range(settings.AXES_FAILURE_LIMIT):
        # The first is what the client claims, the last what the proxy saw.
        sign_in(Client(), password="wrong", HTTP_X_FORWARDED_FOR="192.0.2.1, 203.0.113.9")
    assert sign_in(Client(), HTTP_X_FORWARDED_FOR="192.0.2.2, 203.0.113.9").status_code == 429
    assert sign_in(Client(), HTTP_X_FORWARDED_FOR="192.0.2.1, 198.51.100.7").status_code == 302


def test_a_wrong_password_is_kept_nowhere(client: Client, alice: User):
    sign_in(client, password="my other password")
    assert AccessAttempt.objects.count() == 1
    assert "my other password" not in str(list(AccessAttempt.objects.values()))


# ── The second factor ─────────────────────────────────────────────────────────────────


@pytest.fixture
def guarded(alice: User) -> User:
    """Alice with an authenticator app and recovery codes."""
    TOTP.activate(alice, SECRET)
    RecoveryCodes.activate(alice)
    return alice


def test_a_second_factor_is_asked_for_and_opens(client: Client, guarded: User):
    answer = sign_in(client)
    assert (answer.status_code, answer["Location"]) == (302, reverse("mfa_authenticate"))
    assert not is_in(client)
    assert client.post(reverse("mfa_authenticate"), {"code": code_now()}).status_code == 302
    assert is_in(client)


def test_a_code_opens_once(guarded: User):
    code = code_now()
    for opens in (True, False):
        client = Client()
        sign_in(client)
        client.post(reverse("mfa_authenticate"), {"code": code})
        assert is_in(client) is opens


def test_a_code_that_another_process_took_is_used_up():
    used = Authenticator(type="totp", last_used_at=datetime(2026, 1, 2, 3, 4, 31, tzinfo=UTC))
    assert is_used_up(used, datetime(2026, 1, 2, 3, 4, 59, tzinfo=UTC))
    assert not is_used_up(used, datetime(2026, 1, 2, 3, 5, 0, tzinfo=UTC))
    assert not is_used_up(Authenticator(type="totp"), datetime(2026, 1, 2, 3, 4, 31, tzinfo=UTC))


def test_a_recovery_code_opens_once(guarded: User):
    code = Authenticator.objects.get(type="recovery_codes").wrap().get_unused_codes()[0]
    for opens in (True, False):
        client = Client()
        sign_in(client)
        client.post(reverse("mfa_authenticate"), {"code": code})
        assert is_in(client) is opens


def test_codes_are_not_guessed(client: Client, guarded: User, settings):
    sign_in(client)
    for _ in range(settings.AXES_FAILURE_LIMIT):
        answer = client.post(reverse("mfa_authenticate"), {"code": "000000"})
    assert answer.status_code == 429
    client.post(reverse("mfa_authenticate"), {"code": code_now()})
    assert not is_in(client)
    # Nor with a new start: the password of the same person from the same address waits too.
    assert sign_in(Client()).status_code == 429


def test_secrets_of_the_second_factor_are_encrypted_and_live_through_a_new_key(
    client: Client, guarded: User, settings
):
    assert SECRET not in str(list(Authenticator.objects.values("data")))
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another key of more than thirty-two characters"
    sign_in(client)
    client.post(reverse("mfa_authenticate"), {"code": code_now()})
    assert is_in(client)


def test_the_admin_asks_for_the_second_factor_too(client: Client, admin: User):
    TOTP.activate(admin, SECRET)
    answer = client.post("/admin/login/?next=/admin/", {"username": "admin", "password": PASSWORD})
    assert answer["Location"].startswith(reverse("login"))
    assert client.get("/admin/").status_code == 302
    sign_in(client, name="admin")
    client.post(reverse("mfa_authenticate"), {"code": code_now()})
    assert client.get("/admin/").status_code == 200


def test_a_second_factor_is_set_up_on_the_page(client: Client, alice: User):
    sign_in(client)
    client.post(reverse("account_reauthenticate"), {"password": PASSWORD})
    page = client.get(reverse("mfa_activate_totp")).content.decode()
    secret = re.search(r'id="authenticator_secret"[^>]* value="([A-Z2-7]+)"', page)[1]
    client.post(reverse("mfa_activate_totp"), {"code": code_of(secret)})
    assert sorted(Authenticator.objects.filter(user=alice).values_list("type", flat=True)) == [
        "recovery_codes",
        "totp",
    ]


def test_nothing_that_protects_an_account_changes_without_the_password_again(client_of, alice: User):
    # As after a theft of the cookie.
    client = client_of(alice)
    for name in ("mfa_activate_totp", "mfa_add_webauthn", "account-delete", "account-export"):
        assert client.get(reverse(name))["Location"].startswith(reverse("account_reauthenticate")), name


def test_without_an_invitation_there_is_no_account(client: Client, db: None):
    form = {"username": "mallory", "password1": PASSWORD, "password2": PASSWORD}
    answer = client.post(reverse("account_signup"), form)
    assert "by invitation" in answer.content.decode()
    assert not User.objects.filter(username="mallory").exists()
