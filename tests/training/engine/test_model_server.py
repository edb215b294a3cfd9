"""The client that web application and trainer share: what it sends again, and how it names a failure."""

import httpx
import pytest

from training.model_server import ModelServer, ServerError, read_events


def server(handler, **options) -> ModelServer:
    transport = httpx.MockTransport(handler)
    return ModelServer(url="http://server", key="secret", timeout=5, transport=transport, **options)


@pytest.mark.parametrize(("status", "requests"), [(503, 3), (429, 3), (409, 3), (400, 1), (404, 1)])
def test_a_request_is_sent_again_to_a_busy_server_and_to_no_other(status: int, requests: int):
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        error = {"message": "no", "param": "n"}
        return httpx.Response(status, json={"error": error}, headers={"Retry-After": "4"})

    with server(handler, attempts=3) as client, pytest.raises(ServerError) as caught:
        client.post("/v1/completions", {"n": 1})
    assert len(seen) == requests
    assert {request.headers["authorization"] for request in seen} == {"Bearer secret"}
    error = caught.value
    assert (error.failure, error.status, error.param) == ("refused", status, "n")
    assert (error.server_message, error.retry_after) == ("no", 4.0)


@pytest.mark.parametrize(
    ("failure", "name"),
    [(httpx.ConnectError, "silent"), (httpx.ReadError, "silent"), (httpx.ReadTimeout, "timeout")],
)
def test_a_server_without_an_answer_is_silent_or_out_of_time(failure: type[httpx.HTTPError], name: str):
    def handler(request: httpx.Request) -> httpx.Response:
        raise failure("gone")

    with server(handler, attempts=2) as client, pytest.raises(ServerError) as caught:
        client.post("/v1/completions", {})
    assert (caught.value.failure, caught.value.status) == (name, None)


def test_an_aborted_client_sends_nothing_more():
    with server(lambda _: pytest.fail("sent")) as client:
        client.abort()
        with pytest.raises(ServerError) as caught:
            client.post("/v1/completions", {})
    assert caught.value.failure == "aborted"


def test_an_answer_that_is_not_json_is_named_so_unless_any_answer_is_wanted():
    with server(lambda _: httpx.Response(200, text="<html>")) as client:
        with pytest.raises(ServerError) as caught:
            client.ask("GET", "/v1/models")
        assert caught.value.failure == "not JSON"
    with server(lambda _: httpx.Response(503, json={"state": "loading"})) as client:
        assert client.send("GET", "/health", any_status=True).json() == {"state": "loading"}


@pytest.mark.parametrize(
    ("lines", "failure"),
    [
        (['data: {"a": 1}', ""], "cut off"),
        (["data: [1]", "", "data: [DONE]", ""], "unusable"),
        (["data: {", ""], "unusable"),
    ],
)
def test_a_stream_without_its_end_or_of_something_else_is_an_error(lines: list[str], failure: str):
    with pytest.raises(ServerError) as caught:
        list(read_events(lines))
    assert caught.value.failure == failure
