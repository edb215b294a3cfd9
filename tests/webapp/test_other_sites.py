"""Signing in with another site: an OpenID Connect provider that runs here, and nothing by e-mail alone."""

import base64
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from allauth.socialaccount.models import SocialAccount, SocialToken
from django.test import Client
from django.urls import reverse

from annotation.models import Membership, Project, User
from annotation.services.invitations import create_invitation
from tests.factories import PASSWORD
from webapp.security.providers import providers

LOGIN = "/login/with/oidc/openid/login/"


class Provider(BaseHTTPRequestHandler):
    """Says of everybody who they are: `who`."""

    who: dict[str, object] = {}

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
        self.rfile.read(int(self.headers["Content-Length"]))
        self._say({"access_token": "secret-of-the-other-site", "token_type": "bearer"})

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
def provider(settings) -> Iterator[type[Provider]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings.SOCIALACCOUNT_PROVIDERS = providers(
        github=("", ""),
        google=("", ""),
        openid=("rondo", "a secret"),
        openid_url=f"http://127.0.0.1:{server.server_port}",
        openid_name="House Key",
    )
    yield Provider
    server.shutdown()
    server.server_close()


@pytest.fixture
def come_back(provider: type[Provider]) -> Callable[..., str]:
    """`come_back(client, sub="7")` goes to the provider and back as whom it names; where that leads."""

    def go(client: Client, process: str = "login", **who: object) -> str:
        provider.who = who
        away = client.post(f"{LOGIN}?process={process}")
        asked = parse_qs(urlsplit(away["Location"]).query)
        assert asked["code_challenge_method"] == ["S256"]
        back = client.get(f"{LOGIN}callback/", {"code": "x", "state": asked["state"][0]})
        return back["Location"] if back.status_code == 302 else back.content.decode()

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
