"""The client of the model server: what it sends, and what it makes of answers and failures."""

import json

import httpx
import pytest

from training.engine import (
    OPENAI,
    Engine,
    EngineError,
    EngineUnavailableError,
    EngineUnknownModelError,
)


def engine(handler) -> Engine:
    return Engine(url="http://server", key="secret", transport=httpx.MockTransport(handler))


CHAT = [{"role": "user", "content": "Why?"}]


def test_a_completion_is_asked_for_with_key_seed_and_all_parameters():
    seen: dict[str, object] = {}

    def server(request: httpx.Request) -> httpx.Response:
        seen.update(json.loads(request.content), key=request.headers["Authorization"], path=request.url.path)
        choice = {"index": 0, "message": {"content": "Because."}, "finish_reason": "length"}
        return httpx.Response(200, json={"choices": [choice], "usage": {"completion_tokens": 3}})

    [answer] = engine(server).complete(
        model="m", messages=CHAT, seed=7, temperature=0.5, top_p=0.9, top_k=40, max_tokens=3
    )
    assert (answer.text, answer.finish_reason, answer.seed, answer.token_count) == (
        "Because.",
        "length",
        7,
        3,
    )
    assert seen == {
        "model": "m",
        "messages": CHAT,
        "n": 1,
        "seed": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "max_tokens": 3,
        "key": "Bearer secret",
        "path": "/v1/chat/completions",
    }


def test_a_prefix_is_the_beginning_of_the_answer_as_vllm_takes_it():
    seen: dict[str, object] = {}

    def server(request: httpx.Request) -> httpx.Response:
        seen.update(json.loads(request.content))
        choice = {"index": 0, "message": {"content": " two."}, "finish_reason": "stop"}
        return httpx.Response(200, json={"choices": [choice]})

    [answer] = engine(server).complete(model="m", messages=CHAT, seed=7, prefix="For")
    assert answer.text == " two."
    assert seen["messages"] == [*CHAT, {"role": "assistant", "content": "For"}]
    assert (seen["add_generation_prompt"], seen["continue_final_message"]) == (False, True)


def test_a_server_that_cannot_continue_is_not_asked_for_another_message():
    requests: list[object] = []

    def server(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        error = {"message": "Unrecognized request argument: continue_final_message"}
        return httpx.Response(400, json={"error": error})

    plain = Engine(url="http://server", key="", transport=httpx.MockTransport(server), dialect=OPENAI)
    with pytest.raises(EngineError, match="Unrecognized"):
        plain.complete(model="m", messages=CHAT, seed=7, prefix="For")
    assert len(requests) == 1


def test_scores_come_in_the_order_of_the_completions():
    def server(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/score"
        body = json.loads(request.content)
        assert (body["model"], body["messages"], body["completions"]) == ("r", CHAT, ["long", "s"])
        return httpx.Response(200, json={"scores": [4, 1.5]})

    assert engine(server).score(model="r", messages=CHAT, completions=["long", "s"]) == [4.0, 1.5]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_what_may_pass_is_unavailable_in_the_words_of_the_server(status: int):
    handler = lambda request: httpx.Response(  # noqa: E731
        status, json={"error": {"message": "the model is loading: 43 %"}}
    )
    with pytest.raises(EngineUnavailableError, match="the model is loading: 43 %"):
        engine(handler).models()


def test_a_model_that_is_not_known_is_an_error_of_its_own():
    handler = lambda request: httpx.Response(404, json={"error": {"message": "no model 'x'"}})  # noqa: E731
    with pytest.raises(EngineUnknownModelError, match="no model 'x'"):
        engine(handler).score(model="x", messages=CHAT, completions=["a"])


def test_what_cannot_pass_is_an_error_and_not_unavailable():
    handler = lambda request: httpx.Response(400, json={"error": {"message": "n must be positive"}})  # noqa: E731
    with pytest.raises(EngineError, match="n must be positive") as caught:
        engine(handler).models()
    assert not isinstance(caught.value, EngineUnavailableError)


@pytest.mark.parametrize("failure", [httpx.ConnectError, httpx.ReadError, httpx.ReadTimeout])
def test_a_server_that_is_down_is_unavailable(failure: type[httpx.HTTPError]):
    def server(request: httpx.Request) -> httpx.Response:
        raise failure("down")

    with pytest.raises(EngineUnavailableError):
        engine(server).models()
    health = engine(server).health()
    assert not health.ready
    assert "does not answer" in health.message


def test_a_page_of_some_proxy_is_no_answer_but_a_status():
    handler = lambda request: httpx.Response(502, text="<html>Bad gateway</html>")  # noqa: E731
    with pytest.raises(EngineUnavailableError, match="answered with status 502"):
        engine(handler).models()
    assert not engine(handler).health().ready


def test_health_says_how_far_loading_is():
    handler = lambda request: httpx.Response(  # noqa: E731
        503, json={"state": "loading", "message": "fetching the starter model", "progress": 0.43}
    )
    health = engine(handler).health()
    assert (health.ready, health.message, health.progress) == (False, "fetching the starter model", 0.43)
