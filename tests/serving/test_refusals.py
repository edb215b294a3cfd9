"""Requests that the server refuses, and its messages."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from tests.model_server import RunningServer
from tests.serving.conftest import BASE, connect

CHAT: list[Any] = [{"role": "user", "content": "Hi"}]


def post(server: RunningServer, path: str, body: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    """Status and error object of a raw request."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    connection.request("POST", path, body, {"Authorization": f"Bearer {server.key}", **headers})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer["error"]


@pytest.mark.parametrize("key", ["wrong", "x"])
def test_a_wrong_key_is_refused(server: RunningServer, key: str):
    with pytest.raises(openai.AuthenticationError) as refusal:
        connect(server, key=key).models.list()
    assert refusal.value.code == "invalid_api_key"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/score", "/v1/kl"])
def test_without_a_key_nothing_is_read(server: RunningServer, path: str):
    status, error = post(server, path, b"not even JSON", Authorization="")
    assert (status, error["code"]) == (401, "invalid_api_key")


def test_health_needs_no_key_but_names_models_only_with_it(server: RunningServer):
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    connection.request("GET", "/health")
    health = json.loads(connection.getresponse().read())
    connection.close()
    assert health["state"] == "ready"
    assert "models" not in health
    assert BASE in server.health()["models"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": 1.5}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"seed": -1}, "seed"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": 3}, "stop"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"logit_bias": {"5": 3}}, "logit_bias"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"min_p": 0.1}, "min_p"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "a<|im_end|>b"}]}, "messages[0].content"),
        ({"model": 5}, "model"),
    ],
)
def test_a_bad_field_is_refused_by_name(server: RunningServer, fields: dict[str, Any], param: str):
    body = json.dumps({"model": BASE, "messages": CHAT, "max_tokens": 2, **fields}).encode()
    status, error = post(server, "/v1/chat/completions", body)
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"top_logprobs": 2},
        {"max_tokens": 3, "max_completion_tokens": 4},
        {"stream_options": {"include_usage": True}},
        {"continue_final_message": True},
        {"add_generation_prompt": False},
        # The last message is the user's.
        {"continue_final_message": True, "add_generation_prompt": False},
    ],
)
def test_fields_that_contradict_each_other_are_refused(server: RunningServer, fields: dict[str, Any]):
    status, error = post(
        server, "/v1/chat/completions", json.dumps({"model": BASE, "messages": CHAT, **fields}).encode()
    )
    assert status == 400
    assert all(f"'{name}'" in error["message"] for name in fields)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt"),
        ({"prompt": ""}, "prompt[0]"),
        ({"prompt": [1, 999_999]}, "prompt[0]"),
        ({"echo": "yes"}, "echo"),
        ({"suffix": "x"}, "suffix"),
    ],
)
def test_a_bad_text_request_is_refused_by_name(server: RunningServer, fields: dict[str, Any], param: str):
    body = json.dumps({"model": BASE, "prompt": "a", **fields}).encode()
    status, error = post(server, "/v1/completions", body)
    assert (status, error["param"]) == (400, param)


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"text"', b"\xff\xfe"])
def test_a_body_that_is_no_object_is_refused(server: RunningServer, body: bytes):
    status, error = post(server, "/v1/chat/completions", body)
    assert status == 400
    assert error["code"] in ("invalid_json", "invalid_value")


def test_a_missing_field_is_refused_by_name(server: RunningServer):
    status, error = post(server, "/v1/chat/completions", json.dumps({"model": BASE}).encode())
    assert (status, error["param"], error["code"]) == (400, "messages", "missing_required_parameter")


def test_a_body_beyond_the_limit_is_refused_before_it_is_read_whole(server: RunningServer):
    status, error = post(server, "/v1/chat/completions", b" " * (1024 * 1024 + 1))
    assert (status, error["code"]) == (413, "body_too_large")


def test_a_prompt_beyond_the_context_is_refused(client: openai.OpenAI):
    with pytest.raises(
        openai.BadRequestError, match="2049 tokens; the model's context holds 2048"
    ) as refusal:
        client.completions.create(model=BASE, prompt=[5] * 2049, max_tokens=1)
    assert refusal.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="Ask for at most 48"):
        client.completions.create(model=BASE, prompt=[5] * 2000, max_tokens=49)


def test_a_refusal_of_a_stream_is_a_status_not_an_event(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=BASE, prompt=[5] * 2049, max_tokens=1, stream=True)


@pytest.mark.parametrize(
    "name",
    ["nothing", "../models/SmolLM2-135M-Instruct", "..", ".", "", "zero/", "/etc", "a\\b", "zero\x00", "é"],
)
def test_a_model_that_is_not_there_is_not_found(client: openai.OpenAI, name: str):
    with pytest.raises(openai.NotFoundError) as refusal:
        client.chat.completions.create(model=name, messages=CHAT, max_tokens=1)
    assert refusal.value.code == "model_not_found"


def test_an_address_that_is_not_there_is_said_in_the_same_shape(server: RunningServer):
    status, error = post(server, "/v1/moderations", b"{}")
    assert status == 404
    assert error["message"] == "Not Found."


def test_rubbish_on_the_wire_does_not_end_the_server(server: RunningServer):
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(b"\x00\x01 this is not HTTP\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400")
    assert server.health()["state"] == "ready"
