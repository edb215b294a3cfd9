"""Streams, scores of heads, and other servers: their permitted addresses and the requests to them."""

import json
from collections.abc import Iterator

import httpx
import pytest
from pytest_django import Settings

from annotation.services.addresses import is_public
from training.engine import (
    OPENAI,
    AddressError,
    Answer,
    Engine,
    EngineError,
    Engines,
    EngineUnavailableError,
    ModelServerTransport,
    SegmentScore,
    StreamDelta,
    check_url,
    engine_for,
    key_of,
)
from training.models import Checkpoint
from training.recipe.recipe import SamplingSettings
from training.services.sampling import _completion

CHAT = [{"role": "user", "content": "Why?"}]


def engine(handler, **values) -> Engine:
    return Engine(url="http://server", key="secret", transport=httpx.MockTransport(handler), **values)


def sse(*chunks: object) -> str:
    return "".join(f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n" for chunk in chunks)


def piece(**choice: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": None, **choice}]}


# ── Streams ───────────────────────────────────────────────────────────────────────────


def test_a_stream_gives_its_text_piece_by_piece_and_then_how_it_ended():
    def server(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        assert (body["stream"], body["seed"], body["top_k"]) == (True, 5, 0)
        return httpx.Response(
            200,
            text=sse(
                piece(delta={"role": "assistant", "content": ""}),
                piece(delta={"content": "Be"}),
                piece(delta={"content": "cause"}),
                piece(finish_reason="stop", seed=5, token_count=2),
                {"choices": [], "usage": {"completion_tokens": 9}},
                "[DONE]",
            ),
        )

    deltas = list(engine(server).stream(model="m", messages=CHAT, seed=5))
    assert deltas == [
        StreamDelta(text="Be"),
        StreamDelta(text="cause"),
        StreamDelta(finish_reason="stop", token_count=2, seed=5),
    ]


def test_a_server_that_counts_tokens_only_as_usage_is_understood():
    text = sse(
        piece(delta={"content": "No."}, finish_reason="length"),
        {"choices": [], "usage": {"completion_tokens": 3}},
        "[DONE]",
    )
    deltas = list(engine(lambda _: httpx.Response(200, text=text)).stream(model="m", messages=CHAT, seed=1))
    assert deltas[-1] == StreamDelta(finish_reason="length", token_count=3, seed=1)


@pytest.mark.parametrize(
    "text",
    [
        sse(piece(delta={"content": "Be"})),
        sse(piece(delta={"content": "Be"}), "[DONE]"),
        sse(piece(delta={"content": "Be"}), {"error": {"message": "the server is stopping"}}),
    ],
)
def test_a_stream_that_breaks_off_is_an_error_and_no_answer(text: str):
    deltas = engine(lambda _: httpx.Response(200, text=text)).stream(model="m", messages=CHAT, seed=1)
    assert next(deltas) == StreamDelta(text="Be")
    with pytest.raises(EngineUnavailableError, match=r"broke off|is stopping"):
        next(deltas)


def test_a_refused_stream_says_why_and_when_to_ask_again():
    busy = httpx.Response(429, json={"error": {"message": "queue full"}}, headers={"Retry-After": "5"})
    with pytest.raises(EngineUnavailableError, match="queue full") as caught:
        next(engine(lambda _: busy).stream(model="m", messages=CHAT, seed=1))
    assert (caught.value.status, caught.value.retry_after) == (429, 5.0)


def test_closing_a_stream_closes_the_connection():
    closed = []

    class Body(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            while True:
                yield sse(piece(delta={"content": "on"})).encode()

        def close(self) -> None:
            closed.append(True)

    deltas = engine(lambda _: httpx.Response(200, stream=Body())).stream(model="m", messages=CHAT, seed=1)
    assert next(deltas).text == "on"
    deltas.close()
    assert closed == [True]


# ── Heads and KL ──────────────────────────────────────────────────────────────────────


def test_heads_and_segments_of_a_reward_model_are_told_per_completion():
    def server(request: httpx.Request) -> httpx.Response:
        assert json.loads(request.content)["heads"] is True
        return httpx.Response(
            200,
            json={
                "scores": [1.5, 2],
                "heads": {"score": [[1, 2], [2, 2]]},
                "segments": {"facts": [[{"start": 0, "end": 3, "reward": -0.5}], []]},
            },
        )

    rewards = engine(server).scores_of_heads(model="r", messages=CHAT, completions=["One", ""])
    assert rewards.scores == (1.5, 2.0)
    assert rewards.heads == {"score": ((1.0, 2.0), (2.0, 2.0))}
    assert rewards.segments == {"facts": ((SegmentScore(start=0, end=3, reward=-0.5),), ())}


def test_the_divergence_of_every_token_comes_with_its_place():
    def server(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/kl"
        assert json.loads(request.content) == {
            "model": "p",
            "reference": "q",
            "messages": CHAT,
            "completion": "ab",
        }
        return httpx.Response(200, json={"tokens": ["a", "b"], "kl": [0, -1.5], "offsets": [[0, 1], [1, 2]]})

    divergence = engine(server).token_kl(model="p", messages=CHAT, completion="ab", reference="q")
    assert (divergence.tokens, divergence.kl, divergence.offsets) == (
        ("a", "b"),
        (0.0, -1.5),
        ((0, 1), (1, 2)),
    )


# ── What other servers know ───────────────────────────────────────────────────────────


def plain_openai(*unknown: str, bodies: list[dict[str, object]]):
    """A server that refuses fields as OpenAI's does."""

    def server(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        bodies.append(body)
        for name in unknown:
            if name in body:
                message = f"Unrecognized request argument supplied: {name}"
                return httpx.Response(400, json={"error": {"message": message, "param": None}})
        choice = {"index": 0, "message": {"content": "Yes"}, "finish_reason": "stop"}
        return httpx.Response(200, json={"choices": [choice], "usage": {"completion_tokens": 1}})

    return server


def test_a_server_that_does_not_know_top_k_is_asked_without_and_the_answer_says_so():
    bodies: list[dict[str, object]] = []
    client = engine(plain_openai("top_k", "seed", bodies=bodies), dialect=OPENAI)
    [answer] = client.complete(model="m", messages=CHAT, seed=3, top_k=40)
    assert (answer.text, answer.seed, answer.ignored) == ("Yes", 3, ("seed", "top_k"))
    assert [sorted({"top_k", "seed"} & body.keys()) for body in bodies] == [["seed", "top_k"], ["seed"], []]
    client.complete(model="m", messages=CHAT, seed=4, top_k=40)
    assert len(bodies) == 4, "what it does not know is remembered"


def test_what_a_server_does_not_know_is_not_recorded_as_if_it_had_been_used():
    answer = Answer(text="Yes", finish_reason="stop", seed=3, token_count=1, ignored=("top_k",))
    sampling = _completion(answer, SamplingSettings(temperature=0.5, top_k=40)).sampling
    assert sampling["temperature"] == 0.5
    assert "top_k" not in sampling


def test_a_server_that_wants_max_tokens_by_its_newer_name_gets_it():
    def server(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        if "max_tokens" in body:
            message = (
                "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."
            )
            return httpx.Response(400, json={"error": {"message": message, "param": "max_tokens"}})
        assert body["max_completion_tokens"] == 9
        choice = {"index": 0, "message": {"content": "Yes"}, "finish_reason": "stop"}
        return httpx.Response(200, json={"choices": [choice]})

    [answer] = engine(server, dialect=OPENAI).complete(model="m", messages=CHAT, seed=3, max_tokens=9)
    assert answer.text == "Yes"


def test_a_value_that_is_refused_is_not_taken_for_a_field_that_is_unknown():
    handler = lambda _: httpx.Response(400, json={"error": {"message": "temperature must be at most 1"}})  # noqa: E731
    with pytest.raises(EngineError, match="at most 1"):
        engine(handler, dialect=OPENAI).complete(model="m", messages=CHAT, seed=3, temperature=2)


def test_our_own_server_is_asked_once_and_its_refusal_stands():
    bodies: list[dict[str, object]] = []
    with pytest.raises(EngineError, match="top_k"):
        engine(plain_openai("top_k", bodies=bodies)).complete(model="m", messages=CHAT, seed=3, top_k=40)
    assert len(bodies) == 1


# ── Addresses ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fd00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "2002:7f00:1::",
        "64:ff9b::a00:1",
        "not an address",
    ],
)
def test_an_address_inside_is_not_public(address: str):
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8"])
def test_an_address_of_the_internet_is_public(address: str):
    assert is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org",
        "file:///etc/passwd",
        "gopher://example.org",
        "http://",
        "example.org",
        "http://user:pass@example.org",
        "http://example.org?x=1",
        "http://example.org#x",
        "http://example.org:0",
        "http://example.org:port",
        "http://127.0.0.1:8001",
        "http://[::1]:8001",
        "http://169.254.169.254/latest/meta-data",
        # What one program reads as 127.0.0.1 and another as a name or as nothing.
        "https://0177.0.0.1:8198/",
        "https://127.1/",
        "https://0x7f.1/",
        "https://2130706433/",
        "https://1.2.3.256/",
        "https://１２７.0.0.1/",
        "https://xn--/",
        "https://a..b/",
        "https://a b/",
        "https://" + "a" * 64 + ".example/",
    ],
)
def test_a_url_that_cannot_be_another_server_is_refused(url: str):
    with pytest.raises(AddressError):
        check_url(url)


@pytest.mark.parametrize(
    "url", ["https://gpu-box.example:8000/v1", "https://bücher.example", "https://1.1.1.1"]
)
def test_a_url_that_all_programs_read_alike_is_taken(url: str):
    check_url(url)


def test_an_address_in_octal_is_refused_with_the_way_to_write_it():
    with pytest.raises(AddressError, match="four decimal numbers without leading zeros"):
        check_url("https://0177.0.0.1:8198/")


def test_a_name_that_the_resolver_cannot_encode_is_a_failed_connection():
    def unencodable(host: str, port: int) -> list[str]:
        raise UnicodeError("label too long")

    transport = ModelServerTransport(
        inner=httpx.MockTransport(lambda _: httpx.Response(200)), resolve=unencodable
    )
    with pytest.raises(httpx.ConnectError), httpx.Client(transport=transport) as client:
        client.get("https://models.example")


def guarded(addresses: list[str], requests: list[httpx.Request]) -> Engine:
    def inner(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(200, json={"data": [{"id": "m"}]})

    transport = ModelServerTransport(inner=httpx.MockTransport(inner), resolve=lambda host, port: addresses)
    return Engine(url="https://models.example", key="k", transport=transport, dialect=OPENAI)


def test_the_address_that_was_checked_is_the_one_that_is_asked():
    requests: list[httpx.Request] = []
    assert guarded(["8.8.8.8"], requests).models() == ["m"]
    [request] = requests
    assert (request.url.host, request.headers["Host"]) == ("8.8.8.8", "models.example")
    assert request.extensions["sni_hostname"] == "models.example"


@pytest.mark.parametrize("addresses", [["10.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["::ffff:10.0.0.1"]])
def test_a_name_that_leads_inside_is_not_asked(addresses: list[str]):
    requests: list[httpx.Request] = []
    with pytest.raises(AddressError, match="RONDO_MODEL_SERVER_HOSTS"):
        guarded(addresses, requests).models()
    assert requests == []


@pytest.mark.parametrize("listed", ["models.example", "Models.example:443"])
def test_a_host_that_an_administrator_lists_may_be_inside(listed: str, settings: Settings):
    settings.RONDO_MODEL_SERVER_HOSTS = [listed]
    assert guarded(["10.0.0.1"], []).models() == ["m"]


def test_a_host_listed_with_a_port_is_not_asked_at_another(settings: Settings):
    settings.RONDO_MODEL_SERVER_HOSTS = ["models.example:8000"]
    with pytest.raises(AddressError):
        guarded(["10.0.0.1"], []).models()


def test_the_next_address_is_tried_where_the_first_takes_no_connection():
    def inner(request: httpx.Request) -> httpx.Response:
        if request.url.host == "8.8.8.8":
            raise httpx.ConnectError("down")
        assert request.url.host == "2001:4860:4860::8888"
        return httpx.Response(200, json={"data": []})

    transport = ModelServerTransport(
        inner=httpx.MockTransport(inner), resolve=lambda *_: ["8.8.8.8", "2001:4860:4860::8888"]
    )
    assert Engine(url="http://models.example", key="k", transport=transport).models() == []


def test_a_redirect_is_not_followed():
    paths = []

    def server(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        return httpx.Response(307, headers={"Location": "http://169.254.169.254/"})

    with pytest.raises(EngineError, match="redirect"):
        engine(server).complete(model="m", messages=CHAT, seed=1)
    assert paths == ["/v1/chat/completions"]


# ── A checkpoint's server ─────────────────────────────────────────────────────────────


def test_a_key_comes_from_a_variable_made_for_keys_of_servers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RONDO_SERVER_KEY_VLLM", " abc ")
    assert key_of("RONDO_SERVER_KEY_VLLM") == "abc"
    assert key_of("") == ""
    with pytest.raises(EngineError, match="RONDO_SERVER_KEY_OTHER, which holds the server's key, is not set"):
        key_of("RONDO_SERVER_KEY_OTHER")


@pytest.mark.parametrize("name", ["RONDO_SECRET_KEY", "AWS_SECRET_ACCESS_KEY", "RONDO_SERVER_KEY_"])
def test_no_other_secret_of_the_environment_is_sent_to_a_server(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(name, "secret")
    with pytest.raises(EngineError, match="must begin with RONDO_SERVER_KEY_"):
        key_of(name)


def test_a_checkpoint_without_a_server_is_asked_from_our_own(settings: Settings):
    settings.RONDO_MODEL_SERVER_URL = "http://127.0.0.1:8123"
    with engine_for(Checkpoint(name="ours")) as client:
        assert str(client._server.url) == "http://127.0.0.1:8123"


def test_a_checkpoint_of_another_server_is_asked_there_by_its_name_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RONDO_SERVER_KEY_LAB", "lab-key")
    seen: dict[str, object] = {}

    def lab(request: httpx.Request) -> httpx.Response:
        seen.update(json.loads(request.content), path=request.url.path, key=request.headers["Authorization"])
        choice = {"index": 0, "message": {"content": "Yes"}, "finish_reason": "stop"}
        return httpx.Response(200, json={"choices": [choice]})

    monkeypatch.setattr("training.engine.ModelServerTransport", lambda: httpx.MockTransport(lab))
    judge = Checkpoint(
        pk=1,
        name="judge-70b",
        server_url="https://models.example/v1/",
        server_model="org/judge-70b",
        server_key="RONDO_SERVER_KEY_LAB",
    )
    with Engines() as engines:
        assert engines.of(judge) is engines.of(judge)
        [answer] = engines.of(judge).complete(model="judge-70b", messages=CHAT, seed=1)
    assert answer.text == "Yes"
    assert (seen["model"], seen["path"], seen["key"]) == (
        "org/judge-70b",
        "/v1/chat/completions",
        "Bearer lab-key",
    )
    assert "top_k" not in seen
