"""Providers of models: their keys stay secret, their models respond without a restart."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from annotation.errors import NotAllowed, Refusal
from annotation.models import AuditEntry, User
from training.engine import EngineError, engine_for
from training.models import Checkpoint, ModelProvider
from training.services.providers import (
    add_model,
    add_provider,
    change_provider,
    remove_provider,
)
from training.services.providers import (
    test_provider as ask_provider,
)

pytestmark = pytest.mark.django_db

SignIn = Callable[[User], Client]
KEY = "sk-very-secret-1"
CHAT = [{"role": "user", "content": "Why?"}]


class Upstream(ThreadingHTTPServer):
    """A server with two models, which wants a key."""

    key = KEY
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    """Answers of such a server to a list of models and to a chat."""

    server: Upstream

    def do_GET(self) -> None:
        self._say({"data": [{"id": "maker/large"}, {"id": "maker/small"}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._say(
            {
                "choices": [
                    {"message": {"content": f"by {asked['model']}"}, "finish_reason": "stop", "index": 0}
                ],
                "usage": {"prompt_tokens": 1, "completion_tokens": 2},
            }
        )

    def _say(self, body: object) -> None:
        sent = self.headers.get("Authorization", "")
        self.server.seen.append(sent)
        known = sent == f"Bearer {self.server.key}"
        text = json.dumps(body if known else {"error": {"message": "unknown key"}}).encode()
        self.send_response(200 if known else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Say nothing on the terminal."""


@pytest.fixture
def upstream(settings: Settings) -> Iterator[Upstream]:
    with Upstream() as server:
        settings.RONDO_MODEL_SERVER_HOSTS = [f"127.0.0.1:{server.server_port}"]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def provider(upstream: Upstream, admin: User) -> ModelProvider:
    return add_provider(name="Maker", url=upstream.url, key=KEY, added_by=admin)


def answer_of(checkpoint: Checkpoint) -> str:
    fresh = Checkpoint.objects.get(pk=checkpoint.pk)
    with engine_for(fresh) as engine:
        return engine.complete(model=fresh.name, messages=CHAT, seed=1)[0].text


def test_a_model_of_a_provider_is_listed_added_and_asked_with_its_key(
    provider: ModelProvider, admin: User, upstream: Upstream
):
    tested = ask_provider(provider=provider, tested_by=admin)
    assert (tested.served_models, tested.error) == (["maker/large", "maker/small"], "")
    base = add_model(provider=tested, model="maker/large", added_by=admin)
    assert (base.name, base.starter.provider, base.starter.server_key) == ("large", provider, "")
    assert answer_of(base.starter) == "by maker/large"
    assert set(upstream.seen) == {f"Bearer {KEY}"}


def test_a_changed_key_holds_for_the_next_request(provider: ModelProvider, admin: User, upstream: Upstream):
    tested = ask_provider(provider=provider, tested_by=admin)
    checkpoint = add_model(provider=tested, model="maker/small", name="small-one", added_by=admin).starter
    upstream.key = "sk-second"
    with pytest.raises(EngineError):
        answer_of(checkpoint)
    change_provider(provider=provider, name="Maker", url=provider.url, key="sk-second", changed_by=admin)
    assert answer_of(checkpoint) == "by maker/small"


def test_a_key_is_not_sent_to_another_address(
    provider: ModelProvider, admin: User, settings: Settings, upstream: Upstream
):
    tested = ask_provider(provider=provider, tested_by=admin)
    checkpoint = add_model(provider=tested, model="maker/large", added_by=admin).starter
    other = "https://other.example/v1"
    with pytest.raises(Refusal) as refused:
        change_provider(provider=provider, name="Maker", url=other, changed_by=admin)
    assert refused.value.code == "provider_key_missing"
    checkpoint.refresh_from_db()
    assert checkpoint.server_url == upstream.url
    changed = change_provider(provider=provider, name="Maker", url=other, key="sk-other", changed_by=admin)
    checkpoint.refresh_from_db()
    assert (checkpoint.server_url, changed.served_models, changed.tested_at) == (other, [], None)
    # The same server, spelled without its path, is no other address.
    change_provider(provider=provider, name="Maker", url="https://other.example", changed_by=admin)


def test_a_failed_test_says_why_and_keeps_the_list(provider: ModelProvider, admin: User, upstream: Upstream):
    ask_provider(provider=provider, tested_by=admin)
    upstream.key = "another"
    failed = ask_provider(provider=provider, tested_by=admin)
    assert "unknown key" in failed.error
    assert failed.served_models == ["maker/large", "maker/small"]
    assert KEY not in failed.error


def test_no_page_api_audit_or_row_shows_the_key(
    provider: ModelProvider, admin: User, client_of: SignIn, upstream: Upstream
):
    ask_provider(provider=provider, tested_by=admin)
    change_provider(provider=provider, name="Maker", url=provider.url, key=KEY, changed_by=admin)
    add_model(provider=ModelProvider.objects.get(), model="maker/large", added_by=admin)
    client = client_of(admin)
    shown = [
        client.get(reverse("providers")).content,
        client.get(reverse("provider", args=[provider.pk])).content,
        client.get(reverse("admin:training_modelprovider_change", args=[provider.pk])).content,
        client.get("/api/v1/providers/").content,
        client.get(f"/api/v1/providers/{provider.pk}/").content,
        client.get(reverse("checkpoint", args=["large"])).content,
        repr(list(AuditEntry.objects.values())).encode(),
        repr(list(ModelProvider.objects.values())).encode(),
    ]
    assert all(b"Maker" in text or b"large" in text for text in shown)
    assert [text for text in shown if KEY.encode() in text] == []
    sealed = ModelProvider.objects.get().sealed_key
    assert ModelProvider.objects.get().key == KEY
    assert [text for text in shown[:-1] if sealed.encode() in text] == []


def test_a_key_sealed_with_a_lost_secret_key_is_asked_for_again(
    provider: ModelProvider, admin: User, settings: Settings
):
    tested = ask_provider(provider=provider, tested_by=admin)
    checkpoint = add_model(provider=tested, model="maker/large", added_by=admin).starter
    settings.SECRET_KEY = "another one, " * 5
    with pytest.raises(EngineError, match="Write the provider's key again"):
        answer_of(checkpoint)
    assert "Write the provider's key again" in ask_provider(provider=provider, tested_by=admin).error


def test_only_an_administrator_touches_providers(
    provider: ModelProvider, admin: User, carol: User, client_of: SignIn
):
    for refused in (
        lambda: add_provider(name="x", url="https://x.example", added_by=carol),
        lambda: change_provider(provider=provider, name="x", url=provider.url, changed_by=carol),
        lambda: ask_provider(provider=provider, tested_by=carol),
        lambda: add_model(provider=provider, model="maker/large", added_by=carol),
        lambda: remove_provider(provider=provider, removed_by=carol),
    ):
        with pytest.raises(NotAllowed):
            refused()
    assert client_of(carol).get(reverse("providers")).status_code == 403
    assert Permission.objects.filter(codename="view_modelprovider").exists()


@pytest.mark.parametrize(
    ("values", "code", "field"),
    [
        ({"name": " "}, "invalid_provider_name", "name"),
        ({"name": "x" * 61}, "invalid_provider_name", "name"),
        ({"name": "Maker"}, "provider_name_in_use", "name"),
        ({"url": "http://169.254.169.254/v1"}, "server_address_refused", "url"),
        ({"url": "ftp://models.example"}, "server_address_refused", "url"),
        ({"key": "two\nlines"}, "invalid_provider_key", "key"),
        ({"key": "schlüssel"}, "invalid_provider_key", "key"),
    ],
)
def test_what_no_provider_has_is_refused(
    values: dict[str, str], code: str, field: str, provider: ModelProvider, admin: User
):
    given = {"name": "Other", "url": "https://models.example/v1", **values}
    with pytest.raises(Refusal) as refused:
        add_provider(**given, added_by=admin)
    assert (refused.value.code, refused.value.field) == (code, field)
    assert ModelProvider.objects.count() == 1


def test_a_model_that_was_not_listed_and_a_taken_name_are_refused(provider: ModelProvider, admin: User):
    tested = ask_provider(provider=provider, tested_by=admin)
    for model, name, code in (
        ("maker/none", "", "unknown_server_model"),
        ("maker/large", "not a name", "invalid_model_name"),
    ):
        with pytest.raises(Refusal) as refused:
            add_model(provider=tested, model=model, name=name, added_by=admin)
        assert refused.value.code == code
    add_model(provider=tested, model="maker/large", added_by=admin)
    with pytest.raises(Refusal) as taken:
        add_model(provider=tested, model="maker/small", name="large", added_by=admin)
    assert taken.value.code == "model_name_in_use"
    assert Checkpoint.objects.filter(provider=provider).count() == 1


def test_a_provider_goes_once_no_model_of_it_is_here(provider: ModelProvider, admin: User):
    tested = ask_provider(provider=provider, tested_by=admin)
    base = add_model(provider=tested, model="maker/large", added_by=admin)
    with pytest.raises(Refusal) as refused:
        remove_provider(provider=provider, removed_by=admin)
    assert refused.value.code == "provider_in_use"
    base.starter.delete()
    remove_provider(provider=provider, removed_by=admin)
    assert not ModelProvider.objects.exists()


def test_an_administrator_adds_a_provider_and_its_model_on_the_pages(
    upstream: Upstream, admin: User, client_of: SignIn
):
    client = client_of(admin)
    sent = {"name": "Maker", "url": upstream.url, "key": KEY}
    page = client.post(reverse("providers"), sent, follow=True)
    provider = ModelProvider.objects.get()
    assert page.redirect_chain[-1][0] == provider.get_absolute_url()
    assert page.context["model_form"].fields["model"].choices == [
        ("maker/large", "maker/large"),
        ("maker/small", "maker/small"),
    ]
    added = client.post(reverse("provider-add-model", args=[provider.pk]), {"model": "maker/small"})
    assert added["Location"] == Checkpoint.objects.get(name="small").get_absolute_url()
    # An empty key keeps the present one; the box takes it away.
    there = reverse("provider", args=[provider.pk])
    client.post(there, {"name": "Renamed", "url": upstream.url, "key": ""})
    assert (ModelProvider.objects.get().key, ModelProvider.objects.get().name) == (KEY, "Renamed")
    client.post(there, {"name": "Renamed", "url": upstream.url, "remove_key": "on"})
    assert not ModelProvider.objects.get().has_key
    assert "401" in ModelProvider.objects.get().error or "unknown key" in ModelProvider.objects.get().error


def test_the_api_adds_tests_changes_and_removes_a_provider(
    upstream: Upstream, admin: User, client_of: SignIn
):
    client = client_of(admin)

    def send(method: str, path: str, body: object = None):
        call = getattr(client, method)
        return call(f"/api/v1/providers/{path}", data=json.dumps(body), content_type="application/json")

    made = send("post", "", {"name": "Maker", "url": upstream.url, "key": KEY})
    assert made.status_code == 201
    pk = made.json()["id"]
    assert send("post", f"{pk}/test/", {}).json()["served_models"] == ["maker/large", "maker/small"]
    assert send("post", f"{pk}/models/", {"model": "maker/large"}).json()["name"] == "large"
    assert send("patch", f"{pk}/", {"name": "Changed"}).json()["name"] == "Changed"
    assert ModelProvider.objects.get().key == KEY
    assert send("delete", f"{pk}/").status_code == 422
    Checkpoint.objects.get(name="large").delete()
    assert send("delete", f"{pk}/").status_code == 204
