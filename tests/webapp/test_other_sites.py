"""Signing in with another site, which runs here: an OpenID Connect provider, GitHub, Google."""

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
from allauth.socialaccount.models import SocialAccount, SocialToken
from allauth.socialaccount.providers.github.views import GitHubOAuth2Adapter
from allauth.socialaccount.providers.google.views import GoogleOAuth2Adapter
from django.test import Client
from django.urls import reverse

from annotation.models import Membership, Project, User
from annotation.services.projects.invitations import create_invitation
from tests.factories import PASSWORD
from webapp.environment import providers

LOGIN = "/login/with/oidc/openid/login/"


class Provider(BaseHTTPRequestHandler):
    """Says of everybody who they are: `who`."""

    who: dict[str, object] = {}
    beside: dict[str, object] = {}
    """Claims that come with an access token."""
    exchanged: list[dict[str, str]] = []
    """Codes that were exchanged for one."""

    def do_GET(self) -> None:
        base = f"http://127.0.0.1:{self.connection.getsockname()[1]}"
        if self.path.startswith("/.well-known/"):
            self._say(
                {
                    "issuer": base,
                    "authorization_endpoint": f"{base}/authorize",
                    "token_endpoint": f"{base}/token",
                    "userinfo_endpoint": f"{base}/userinfo",
                    "jwks_uri": f"{base}/jwks",
                }
            )
        else:
            self._say(self.who)

    def do_POST(self) -> None:
        sent = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.exchanged.append({name: values[0] for name, values in sent.items()})
        self._say({"access_token": "secret-of-the-other-site", "token_type": "bearer", **self.beside})

    def _say(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Nothing: a test's output is for its failures."""


@pytest.fixture
def site() -> Iterator[str]:
    """The address of the other site."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    Provider.who, Provider.beside, Provider.exchanged = {}, {}, []
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def provider(site: str, settings) -> type[Provider]:
    settings.SOCIALACCOUNT_PROVIDERS = providers(
        github=("", ""),
        google=("", ""),
        openid=("rondo", "a secret"),
        openid_url=site,
        openid_name="House Key",
    )
    return Provider


def there_and_back(client: Client, login: str, process: str) -> tuple[dict[str, list[str]], str]:
    """Return the query sent to the other site, and the address or page that the way back leads to."""
    away = client.post(f"{login}?process={process}")
    query = parse_qs(urlsplit(away["Location"]).query)
    assert query["code_challenge_method"] == ["S256"]
    back = client.get(f"{login}callback/", {"code": "x", "state": query["state"][0]})
    return query, back["Location"] if back.status_code == 302 else back.content.decode()


@pytest.fixture
def come_back(provider: type[Provider]) -> Callable[..., str]:
    """`come_back(client, sub="7")` goes to the provider and back as whom it names; where that leads."""

    def go(client: Client, process: str = "login", **who: object) -> str:
        provider.who = who
        _query, led_to = there_and_back(client, LOGIN, process)
        return led_to

    return go


def is_in(client: Client) -> bool:
    return client.get(reverse("projects")).status_code == 200


def test_the_sign_in_page_offers_what_is_set_up(provider, client: Client, db: None):
    assert "Continue with House Key" in client.get(reverse("login")).content.decode()


def test_nothing_is_offered_where_nothing_is_set_up(client: Client, db: None):
    assert "Continue with" not in client.get(reverse("login")).content.decode()


def test_a_connected_account_opens(come_back, alice: User, client: Client):
    SocialAccount.objects.create(user=alice, provider="openid", uid="7")
    come_back(client, sub="7", email="alice@elsewhere.example")
    assert is_in(client)
    assert client.session["_auth_user_id"] == str(alice.pk)
    assert not SocialToken.objects.exists()


def test_an_e_mail_address_opens_nobodys_account(come_back, alice: User, client: Client):
    come_back(client, sub="8", email=alice.email, email_verified=True, preferred_username="alice")
    assert not is_in(client)
    assert not SocialAccount.objects.exists()


def test_a_stranger_gets_no_account(come_back, client: Client, db: None):
    come_back(client, sub="9", preferred_username="mallory")
    assert not is_in(client)
    assert not User.objects.exists()


def test_an_invited_stranger_gets_one_and_is_a_member(
    come_back, project: Project, carol: User, client: Client
):
    made = create_invitation(project=project, created_by=carol, role="annotator", days=1)
    client.get(reverse("invitation", kwargs={"secret": made.secret}))
    come_back(client, sub="9", preferred_username="dora")
    assert is_in(client)
    dora = User.objects.get(username="dora")
    assert not dora.has_usable_password()
    assert Membership.objects.filter(user=dora, project=project).exists()


def test_an_account_is_connected_by_who_is_signed_in(come_back, alice: User, client: Client):
    client.post(reverse("login"), {"username": "alice", "password": PASSWORD})
    client.post(reverse("account_reauthenticate"), {"password": PASSWORD})
    come_back(client, process="connect", sub="7")
    assert SocialAccount.objects.get().user == alice


def test_the_way_out_is_never_followed_by_a_link(provider, client: Client, db: None):
    assert client.get(LOGIN).status_code == 200


def test_a_way_back_that_nobody_began_opens_nothing(provider, alice: User, client: Client):
    SocialAccount.objects.create(user=alice, provider="openid", uid="7")
    provider.who = {"sub": "7"}
    forged = base64.urlsafe_b64encode(b"forged").decode()
    client.get(f"{LOGIN}callback/", {"code": "x", "state": forged})
    assert not is_in(client)


# ── GitHub and Google: allauth knows their addresses, which here lead to the site above ──


def github(person: int) -> dict[str, object]:
    """Return somebody's profile as GitHub's API gives it."""
    return {"id": person, "login": f"octo{person}", "email": "alice@rondo.example", "name": "Octo"}


def google(person: int) -> dict[str, object]:
    """Return the claims about somebody in an identity token of Google."""
    now = int(time.time())
    return {
        **{"iss": "https://accounts.google.com", "aud": "rondo", "iat": now, "exp": now + 600},
        **{"sub": str(person), "email": "alice@rondo.example", "email_verified": True, "name": "Googol"},
    }


def as_told_by_google(claims: dict[str, object]) -> dict[str, object]:
    """The token beside the access token. Its signature is not looked at: it came straight from Google."""
    return {"id_token": jwt.encode(claims, "k" * 32, algorithm="HS256")}


@dataclass(frozen=True)
class Elsewhere:
    """`elsewhere(client, 7)` goes to the site of that name, and back as person 7 there; where that leads."""

    name: str

    def __call__(self, client: Client, person: int, process: str = "login") -> str:
        if self.name == "github":
            Provider.who = github(person)
        else:
            Provider.beside = as_told_by_google(google(person))
        login = f"/login/with/{self.name}/"
        query, led_to = there_and_back(client, login, process)
        assert query["client_id"] == ["rondo"]
        assert query["redirect_uri"] == [f"http://testserver{login}callback/"]
        (exchanged,) = Provider.exchanged
        assert (exchanged["code"], exchanged["client_id"]) == ("x", "rondo")
        verified = hashlib.sha256(exchanged["code_verifier"].encode()).digest()
        assert base64.urlsafe_b64encode(verified).rstrip(b"=").decode() == query["code_challenge"][0]
        return led_to


@pytest.fixture(params=["github", "google"])
def elsewhere(
    request: pytest.FixtureRequest, site: str, settings, monkeypatch: pytest.MonkeyPatch
) -> Elsewhere:
    """GitHub, and then Google, as `site` plays them."""
    name: str = request.param
    keys: Any = {"github": ("", ""), "google": ("", ""), name: ("rondo", "a secret")}
    settings.SOCIALACCOUNT_PROVIDERS = providers(**keys, openid=("", ""), openid_url="", openid_name="x")
    adapter = GitHubOAuth2Adapter if name == "github" else GoogleOAuth2Adapter
    before = urlsplit(adapter.authorize_url)
    assert before.scheme == "https"
    assert before.hostname in ("github.com", "accounts.google.com")
    for address in ("access_token_url", "authorize_url", "profile_url", "emails_url", "identity_url"):
        if hasattr(adapter, address):
            monkeypatch.setattr(adapter, address, f"{site}/{address}")
    return Elsewhere(name)


def test_github_and_google_open_the_account_that_is_connected_and_keep_no_token(
    elsewhere, alice: User, client: Client
):
    SocialAccount.objects.create(user=alice, provider=elsewhere.name, uid="7")
    elsewhere(client, 7)
    assert is_in(client)
    assert client.session["_auth_user_id"] == str(alice.pk)
    assert not SocialToken.objects.exists()


def test_github_and_google_open_nothing_by_an_e_mail_address(elsewhere, alice: User, client: Client):
    User.objects.filter(pk=alice.pk).update(email="alice@rondo.example")
    SocialAccount.objects.create(user=alice, provider=elsewhere.name, uid="7")
    elsewhere(client, 8)
    assert not is_in(client)
    assert SocialAccount.objects.count() == 1


def test_github_and_google_bring_who_was_invited(elsewhere, project: Project, carol: User, client: Client):
    made = create_invitation(project=project, created_by=carol, role="annotator", days=1)
    client.get(reverse("invitation", kwargs={"secret": made.secret}))
    elsewhere(client, 9)
    assert is_in(client)
    newcomer = SocialAccount.objects.get(provider=elsewhere.name, uid="9").user
    assert Membership.objects.filter(user=newcomer, project=project).exists()
    assert not newcomer.has_usable_password()


def test_github_and_google_are_connected_by_who_is_signed_in(elsewhere, alice: User, client: Client):
    client.post(reverse("login"), {"username": "alice", "password": PASSWORD})
    client.post(reverse("account_reauthenticate"), {"password": PASSWORD})
    elsewhere(client, 7, process="connect")
    connected = SocialAccount.objects.get()
    assert (connected.user, connected.provider, connected.uid) == (alice, elsewhere.name, "7")


@pytest.mark.parametrize("elsewhere", ["google"], indirect=True)
@pytest.mark.parametrize(
    "wrong", [{"aud": "another"}, {"iss": "https://accounts.evil.example"}, {"exp": 1_000_000_000}]
)
def test_a_token_of_google_that_is_for_another_or_by_another_or_over_opens_nothing(
    elsewhere, alice: User, client: Client, wrong: dict[str, object], monkeypatch: pytest.MonkeyPatch
):
    SocialAccount.objects.create(user=alice, provider="google", uid="7")
    claims = {**google(7), **wrong}
    monkeypatch.setattr(f"{__name__}.google", lambda person: claims)
    elsewhere(client, 7)
    assert not is_in(client)


def test_a_provider_needs_both_of_its_variables():
    half = providers(
        github=("id", ""), google=("", "secret"), openid=("id", "secret"), openid_url="", openid_name="x"
    )
    assert half == {}
    whole = providers(
        github=("id", "secret"),
        google=("id", "secret"),
        openid=("", ""),
        openid_url="https://x",
        openid_name="x",
    )
    assert set(whole) == {"github", "google"}
