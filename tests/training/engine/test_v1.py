"""OpenAI's interface at /v1/: who may ask, what is passed on, what is said when something fails."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
from django.db import connections
from django.test import Client
from pytest_django import Settings

from annotation.choices import SourceKind
from annotation.models import CompletionSource, Project, User
from annotation.services.people.accounts import create_token
from training.engine import AsyncModelServerTransport, ClientGoneError, Relay
from training.models import Checkpoint
from training.services.checkpoints import register_starter
from training.views import openai

pytestmark = pytest.mark.django_db

CHAT = [{"role": "user", "content": "Why?"}]
ANSWER = {"id": "x", "object": "chat.completion", "choices": []}


class Upstream:
    """A model server inside the test; `answer` decides, and `asked` remembers."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None, Any]] = []
        self.answer: Callable[[httpx.Request], httpx.Response] = lambda _: httpx.Response(200, json=ANSWER)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(await request.aread())
        self.asked.append((str(request.url), request.headers.get("Authorization"), body))
        return self.answer(request)


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Upstream:
    settings.RONDO_MODEL_SERVER_URL = "http://ours:8001"
    settings.RONDO_MODEL_SERVER_KEY = "our-key"
    server = Upstream()
    transport = httpx.MockTransport(server)
    inside = AsyncModelServerTransport(inner=transport, resolve=lambda host, port: ["8.8.8.8"])
    passes = Relay(plain=transport, guarded=inside)
    monkeypatch.setattr(openai, "relay", lambda: passes)
    return server


@pytest.fixture
def starter(project: Project) -> Checkpoint:
    return register_starter(name="starter")


def bearer(user: User, *scopes: str) -> dict[str, str]:
    made = create_token(user=user, name=f"t{user.api_tokens.count()}", scopes=scopes or ["read", "generate"])
    return {"Authorization": f"Bearer {made.secret}"}


def ask(client: Client, headers: dict[str, str], path: str = "chat/completions", **body: Any) -> Any:
    sent = {"model": "starter", "messages": CHAT, **body}
    return client.post(f"/v1/{path}", sent, content_type="application/json", headers=headers)


def outsource(name: str, **fields: Any) -> Checkpoint:
    source = CompletionSource.objects.create(name=name, kind=SourceKind.CHECKPOINT)
    return Checkpoint.objects.create(name=name, kind="starter", base_model=name, source=source, **fields)


def test_an_answer_is_passed_on_as_it_is_under_our_own_key(
    upstream: Upstream, starter: Checkpoint, carol: User, client: Client
):
    response = ask(client, bearer(carol), temperature=0.5, seed=3, anything="else")
    assert (response.status_code, response.json()) == (200, ANSWER)
    assert upstream.asked == [
        (
            "http://ours:8001/v1/chat/completions",
            "Bearer our-key",
            {"model": "starter", "messages": CHAT, "temperature": 0.5, "seed": 3, "anything": "else"},
        )
    ]


def test_formats_and_tools_are_passed_on_and_calls_come_back(
    upstream: Upstream, starter: Checkpoint, carol: User, client: Client
):
    call = {"id": "a", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    answer = {**ANSWER, "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    upstream.answer = lambda _: httpx.Response(200, json=answer)
    fields: dict[str, Any] = {
        "tools": [{"type": "function", "function": {"name": "clock"}}],
        "tool_choice": "required",
        "response_format": {"type": "json_object"},
        "messages": [*CHAT, message, {"role": "tool", "tool_call_id": "a", "content": "noon"}],
    }
    response = ask(client, bearer(carol), **fields)
    assert (response.status_code, response.json()) == (200, answer)
    [(_, _, body)] = upstream.asked
    assert fields.items() <= body.items()


def test_models_are_those_of_projects_that_one_manages(
    starter: Checkpoint, carol: User, alice: User, admin: User, client: Client
):
    outsource("elsewhere", server_url="https://models.example")
    Checkpoint.objects.create(
        name="gone",
        kind="starter",
        base_model="x",
        files_deleted_at="2026-01-01T00:00:00Z",
        source=CompletionSource.objects.create(name="gone", kind=SourceKind.CHECKPOINT),
    )
    listed = client.get("/v1/models", headers=bearer(carol)).json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["elsewhere", "starter"]
    assert {model["owned_by"] for model in listed["data"]} == {"rondo"}
    assert client.get("/v1/models/starter", headers=bearer(admin)).json()["id"] == "starter"
    # Alice judges in the project: to ask a checkpoint would tell which answers are its own.
    assert client.get("/v1/models", headers=bearer(alice)).json()["data"] == []
    assert client.get("/v1/models/starter", headers=bearer(alice)).status_code == 404


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eDp4"}])
def test_without_a_good_token_there_is_no_answer_even_with_a_cookie(
    headers: dict[str, str], upstream: Upstream, starter: Checkpoint, admin: User, client: Client
):
    client.force_login(admin)
    response = ask(client, headers)
    assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
    assert response["WWW-Authenticate"] == "Bearer"
    assert upstream.asked == []


def test_a_token_that_only_reads_makes_no_model_answer(
    upstream: Upstream, starter: Checkpoint, carol: User, client: Client
):
    response = ask(client, bearer(carol, "read"))
    assert (response.status_code, response.json()["error"]["code"]) == (403, "insufficient_scope")
    assert upstream.asked == []


def test_too_many_requests_are_told_when_to_come_again(
    upstream: Upstream, starter: Checkpoint, carol: User, client: Client, settings: Settings
):
    settings.RONDO_TOKEN_REQUESTS_PER_MINUTE = 0
    response = ask(client, bearer(carol))
    assert (response.status_code, response.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert 1 <= int(response["Retry-After"]) <= 60


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b"[" * 100_000, 400, "invalid_json"),
        (b"[1]", 400, "invalid_value"),
        (b"{}", 400, "missing_required_parameter"),
        (b'{"model": "nobody"}', 404, "model_not_found"),
        (b'{"model": ["starter"]}', 404, "model_not_found"),
        (b'{"model": "' + b"x" * 3_000_000 + b'"}', 413, "body_too_large"),
    ],
)
def test_a_body_that_cannot_be_passed_on_is_refused_in_the_shape_of_openai(
    content: bytes,
    status: int,
    code: str,
    upstream: Upstream,
    starter: Checkpoint,
    carol: User,
    client: Client,
):
    response = client.post(
        "/v1/chat/completions", content, content_type="application/json", headers=bearer(carol)
    )
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert upstream.asked == []


def test_what_the_server_refuses_comes_back_with_its_words_and_when_to_ask_again(
    upstream: Upstream, starter: Checkpoint, carol: User, client: Client
):
    busy = {"error": {"message": "queue full", "type": "server_error", "param": None, "code": "queue_full"}}
    upstream.answer = lambda _: httpx.Response(
        429, json=busy, headers={"Retry-After": "7", "Set-Cookie": "a=b"}
    )
    for stream in (False, True):
        response = ask(client, bearer(carol), stream=stream)
        assert (response.status_code, response.json(), response["Retry-After"]) == (429, busy, "7")
        assert not response.cookies


@pytest.mark.parametrize("status", [401, 403, 307])
def test_that_a_server_refuses_our_key_is_not_the_fault_of_the_one_who_asks(
    status: int, upstream: Upstream, starter: Checkpoint, carol: User, client: Client
):
    upstream.answer = lambda _: httpx.Response(
        status, headers={"Location": "http://127.0.0.1/"}, text="our-key"
    )
    response = ask(client, bearer(carol))
    assert (response.status_code, response.json()["error"]["code"]) == (502, "model_server_refuses")
    assert "our-key" not in response.content.decode()
    assert len(upstream.asked) == 1


@pytest.mark.parametrize(
    ("failure", "status"), [(httpx.ConnectError("down"), 503), (httpx.ReadTimeout("slow"), 504)]
)
def test_a_server_that_is_away_is_told_so(
    failure: Exception, status: int, upstream: Upstream, starter: Checkpoint, carol: User, client: Client
):
    def fail(_: httpx.Request) -> httpx.Response:
        raise failure

    upstream.answer = fail
    response = ask(client, bearer(carol))
    assert (response.status_code, response.json()["error"]["code"]) == (status, "model_server_unavailable")
    assert response["Retry-After"]


class Pieces(httpx.AsyncByteStream):
    """A stream of events that says whether it was closed."""

    def __init__(self, *pieces: bytes, then: Exception | None = None, endless: bool = False) -> None:
        self.pieces, self.then, self.endless, self.closed = pieces, then, endless, False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece
        if self.then is not None:
            raise self.then
        while self.endless:
            await asyncio.sleep(0.01)
            yield b"data: {}\n\n"

    async def aclose(self) -> None:
        self.closed = True


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_stream_comes_piece_by_piece_and_is_not_collected(
    upstream: Upstream, starter: Checkpoint, carol: User, client: Client
):
    body = Pieces(b'data: {"a": 1}\n\n', b"data: [DONE]\n\n")
    upstream.answer = lambda _: httpx.Response(200, stream=body)
    response = ask(client, bearer(carol), stream=True)
    assert response.streaming
    assert (response["Content-Type"], response["X-Accel-Buffering"]) == ("text/event-stream", "no")
    assert list(response) == [b'data: {"a": 1}\n\n', b"data: [DONE]\n\n"]
    response.close()
    wait_until(lambda: body.closed)


@pytest.mark.django_db(transaction=True)
def test_closing_a_stream_calls_the_answer_off_and_gives_its_place_free(
    upstream: Upstream, starter: Checkpoint, carol: User, client: Client
):
    for _ in range(2 * openai.ANSWERS_AT_ONCE):
        body = Pieces(endless=True)
        upstream.answer = lambda _, body=body: httpx.Response(200, stream=body)  # type: ignore[misc]
        response = ask(client, bearer(carol), stream=True)
        assert response.status_code == 200
        next(iter(response))
        response.close()
        wait_until(lambda body=body: body.closed)  # type: ignore[misc]


@pytest.mark.django_db(transaction=True)
def test_a_stream_that_nobody_began_to_read_gives_its_place_free_too(
    upstream: Upstream, starter: Checkpoint, carol: User, client: Client
):
    for _ in range(2 * openai.ANSWERS_AT_ONCE):
        upstream.answer = lambda _: httpx.Response(200, stream=Pieces(endless=True))
        response = ask(client, bearer(carol), stream=True)
        assert response.status_code == 200
        response.close()


def test_more_answers_at_once_than_a_process_gives_are_refused(
    upstream: Upstream, starter: Checkpoint, carol: User, client: Client
):
    upstream.answer = lambda _: httpx.Response(200, stream=Pieces(endless=True))
    headers = bearer(carol)
    responses = [ask(client, headers, stream=True) for _ in range(openai.ANSWERS_AT_ONCE)]
    refused = ask(client, headers, stream=True)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
    assert refused["Retry-After"]
    for response in responses:
        response.close()


def test_a_stream_that_breaks_says_so_inside(
    upstream: Upstream, starter: Checkpoint, carol: User, client: Client
):
    body = Pieces(b"data: {}\n\n", then=httpx.ReadError("gone"))
    upstream.answer = lambda _: httpx.Response(200, stream=body)
    first, second = list(ask(client, bearer(carol), stream=True))
    assert first == b"data: {}\n\n"
    event = json.loads(second.decode().removeprefix("data: "))
    assert event["error"]["code"] == "model_server_unavailable"


def test_who_hangs_up_while_the_server_is_silent_calls_the_answer_off():
    ours, theirs = socket.socketpair()

    class Request:
        META = {"gunicorn.socket": ours}

    is_gone = openai._disconnection(Request())  # type: ignore[arg-type]
    assert not is_gone()
    theirs.close()
    assert is_gone()

    class Forever(httpx.AsyncBaseTransport):
        closed = False

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                Forever.closed = True
                raise
            raise AssertionError

    exchange = Relay(plain=Forever()).post(
        url="http://x/v1", key="", body=b"{}", seconds=60, guarded=False, is_gone=is_gone
    )
    with pytest.raises(ClientGoneError):
        exchange.head()
    wait_until(lambda: Forever.closed)


def test_a_checkpoint_of_another_server_is_asked_there_with_its_own_key(
    upstream: Upstream, starter: Checkpoint, carol: User, client: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RONDO_SERVER_KEY_LAB", "lab-key")
    outsource(
        "judge",
        server_url="https://models.example/v1",
        server_model="org/judge-70b",
        server_key="RONDO_SERVER_KEY_LAB",
    )
    assert ask(client, bearer(carol), model="judge").status_code == 200
    [(url, key, body)] = upstream.asked
    assert (url, key, body["model"]) == (
        "https://8.8.8.8/v1/chat/completions",
        "Bearer lab-key",
        "org/judge-70b",
    )


def test_another_server_inside_the_network_is_not_asked(
    upstream: Upstream, starter: Checkpoint, carol: User, client: Client
):
    outsource("inside", server_url="http://169.254.169.254/v1")
    response = ask(client, bearer(carol), model="inside")
    assert (response.status_code, response.json()["error"]["code"]) == (502, "model_server_not_set_up")
    assert upstream.asked == []


def test_other_addresses_below_v1_are_not_found_in_the_shape_of_openai(client: Client):
    response = client.post("/v1/embeddings", {}, content_type="application/json")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "unknown_url")


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_no_connection_to_the_database_is_held_while_an_answer_is_streamed(
    upstream: Upstream, starter: Checkpoint, carol: User, client: Client
):
    upstream.answer = lambda _: httpx.Response(200, stream=Pieces(endless=True))
    response = ask(client, bearer(carol), stream=True)
    assert connections["default"].connection is None
    response.close()


@pytest.fixture(autouse=True)
def all_places_free() -> Iterator[None]:
    """No test leaves an answer behind."""
    yield
    count = 0
    while openai._room.acquire(blocking=False):
        count += 1
    for _ in range(count):
        openai._room.release()
    assert count == openai.ANSWERS_AT_ONCE
