"""Tokens for programs: shown once, kept as a digest, ended, revoked, counted."""

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings

from annotation.choices import TokenScope
from annotation.errors import NotAllowed, Refusal
from annotation.models import ApiToken, AuditEntry, User
from annotation.services.people.accounts import (
    NewToken,
    TooManyRequests,
    create_token,
    revoke_token,
    use_token,
)
from tests.refusals import refused

SignIn = Callable[[User], Client]


@pytest.fixture
def made(alice: User) -> NewToken:
    return create_token(user=alice, name="nightly", scopes=["generate"])


def test_the_secret_opens_and_is_not_in_the_database(made: NewToken, alice: User):
    assert use_token(secret=made.secret, scope=TokenScope.GENERATE) == made.token
    stored = ApiToken.objects.values().get()
    assert made.secret not in str(stored)
    assert stored["digest"] == hashlib.sha256(made.secret.encode()).hexdigest()
    assert made.secret.startswith(stored["beginning"])
    assert len(made.secret) > 40
    assert [(e.action, e.actor, e.details) for e in AuditEntry.objects.all()] == [
        ("token.create", alice, {"scopes": ["generate"]})
    ]


def test_another_secret_opens_nothing(made: NewToken):
    for secret in ("", "rondo_", made.secret[:-1], made.secret + "x", made.token.digest):
        assert use_token(secret=secret, scope=TokenScope.GENERATE) is None


def test_a_token_is_good_only_for_its_scopes(made: NewToken):
    with refused("token_lacks_scope", NotAllowed, scope="read"):
        use_token(secret=made.secret, scope=TokenScope.READ)


def test_a_revoked_token_opens_nothing_and_its_name_is_free_again(made: NewToken, alice: User, bob: User):
    with refused("token_of_another", NotAllowed):
        revoke_token(token=made.token, user=bob)
    revoke_token(token=made.token, user=alice)
    revoke_token(token=made.token, user=alice)
    assert use_token(secret=made.secret, scope=TokenScope.GENERATE) is None
    assert AuditEntry.objects.filter(action="token.revoke").count() == 1
    create_token(user=alice, name="nightly", scopes=["read"])


def test_a_token_ends_when_it_was_said_to(alice: User):
    end = timezone.now() + timedelta(days=1)
    made = create_token(user=alice, name="short", scopes=["read"], expires_at=end)
    assert use_token(secret=made.secret, scope=TokenScope.READ, now=end - timedelta(seconds=1))
    assert use_token(secret=made.secret, scope=TokenScope.READ, now=end) is None


def test_a_token_of_someone_who_may_no_longer_sign_in_opens_nothing(made: NewToken, alice: User):
    alice.is_active = False
    alice.save()
    assert use_token(secret=made.secret, scope=TokenScope.GENERATE) is None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "  "}, "name"),
        ({"name": "nightly"}, "name"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["read", "everything"]}, "scopes"),
        ({"expires_at": datetime(2020, 1, 1, tzinfo=UTC)}, "expires_at"),
    ],
)
def test_what_makes_no_token_is_refused_by_its_field(
    made: NewToken, alice: User, changes: dict[str, object], field: str
):
    with pytest.raises(Refusal) as caught:
        create_token(**{"user": alice, "name": "other", "scopes": ["read"], **changes})  # type: ignore[arg-type]
    assert caught.value.field == field
    assert ApiToken.objects.count() == 1


def test_a_request_that_is_overtaken_at_the_turn_of_a_minute_counts_in_the_next(
    made: NewToken, settings: Settings
):
    settings.RONDO_TOKEN_REQUESTS_PER_MINUTE = 2
    turn = timezone.now().replace(second=0, microsecond=0)
    before = turn - timedelta(milliseconds=1)
    assert use_token(secret=made.secret, scope=TokenScope.GENERATE, now=turn)
    assert use_token(secret=made.secret, scope=TokenScope.GENERATE, now=before)
    with pytest.raises(TooManyRequests):
        use_token(secret=made.secret, scope=TokenScope.GENERATE, now=before)


def test_a_token_may_be_used_so_often_a_minute(made: NewToken, settings: Settings):
    settings.RONDO_TOKEN_REQUESTS_PER_MINUTE = 3
    start = datetime(2026, 1, 1, 12, 0, 10, tzinfo=UTC)
    for second in range(3):
        use_token(secret=made.secret, scope=TokenScope.GENERATE, now=start + timedelta(seconds=second))
    with refused("too_many_requests", TooManyRequests) as caught:
        use_token(secret=made.secret, scope=TokenScope.GENERATE, now=start + timedelta(seconds=20))
    # It is 12:00:30; the next minute begins in 30 seconds.
    assert caught.value.seconds == 30
    assert use_token(secret=made.secret, scope=TokenScope.GENERATE, now=start + timedelta(seconds=50))
    made.token.refresh_from_db()
    assert made.token.last_used_at == datetime(2026, 1, 1, 12, 1, tzinfo=UTC), "to the minute"


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_of_many_requests_at_once_exactly_as_many_pass_as_may(alice: User, settings: Settings):
    settings.RONDO_TOKEN_REQUESTS_PER_MINUTE = 5
    made = create_token(user=alice, name="storm", scopes=["read"])
    now = timezone.now()

    def use(_: int) -> bool:
        try:
            return use_token(secret=made.secret, scope=TokenScope.READ, now=now) is not None
        except TooManyRequests:
            return False
        finally:
            connection.close()

    with ThreadPoolExecutor(max_workers=8) as pool:
        assert sum(pool.map(use, range(24))) == 5


def test_a_machine_can_never_be_made_to_sign_in(db: None):
    with pytest.raises(IntegrityError), transaction.atomic():
        User.objects.create(username="judge", is_machine=True, is_active=True)
    with pytest.raises(IntegrityError), transaction.atomic():
        User.objects.create(username="judge", is_machine=True, is_active=False, is_superuser=True)
    User.objects.create(username="judge", is_machine=True, is_active=False)


# ── The page ──────────────────────────────────────────────────────────────────────────


def test_the_page_shows_a_new_secret_once(alice: User, client_of: SignIn):
    client = client_of(alice)
    sent = {"name": "my script", "scopes": ["read", "generate"], "days": "30"}
    page = client.post(reverse("tokens"), sent)
    [token] = alice.api_tokens.all()
    secret = page.context["made"].secret
    assert secret in page.content.decode()
    assert use_token(secret=secret, scope=TokenScope.GENERATE) == token
    assert 29 <= (token.expires_at - timezone.now()).days <= 30
    again = client.get(reverse("tokens")).content.decode()
    assert secret not in again
    assert "my script" in again
    assert "no-store" in page["Cache-Control"]


def test_a_form_that_says_too_little_is_shown_again(alice: User, client_of: SignIn):
    page = client_of(alice).post(reverse("tokens"), {"name": "", "days": "30"})
    assert page.status_code == 422
    assert alice.api_tokens.count() == 0


def test_one_revokes_ones_own_tokens_and_sees_no_others(
    made: NewToken, alice: User, bob: User, client_of: SignIn
):
    url = reverse("token-revoke", args=[made.token.pk])
    assert client_of(bob).post(url).status_code == 404
    assert "nightly" not in client_of(bob).get(reverse("tokens")).content.decode()
    assert client_of(alice).post(url).status_code == 302
    assert use_token(secret=made.secret, scope=TokenScope.GENERATE) is None
