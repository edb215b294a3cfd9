"""From start to stop: health while loading, a full queue, clients that leave, signals."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from tests.model_server import ROOT, RunningServer, running_model_server
from tests.serving.conftest import BASE, Folders, connect
from training.serving import startup
from training.serving.__main__ import main

CHAT: list[Any] = [{"role": "user", "content": "Hi"}]
LONG = 2000
"""Tokens that take the tiny model many seconds: more than any test waits for."""


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def begin_long_stream(client: openai.OpenAI) -> Any:
    """A stream of many tokens, of which the first has come: the generation thread is busy.

    The likeliest tokens, for chance may end an answer of the tiny model after a few: these never end.
    """
    stream = client.completions.create(model=BASE, prompt="a", max_tokens=LONG, temperature=0, stream=True)
    next(iter(stream))
    return stream


def test_it_answers_from_the_first_moment_until_the_last_answer_after_sigterm(
    folders: Folders, tmp_path: Path
):
    models = tmp_path / "models"
    with running_model_server(
        models,
        folders.checkpoints,
        arguments=["--seconds-to-stop", "120"],
        environment={"RONDO_STARTER_MODEL": str(folders.base)},
        wait=False,
        forked=False,
    ) as server:
        # Not there yet, and said so.
        seen = server.health()
        assert seen["state"] in ("starting", "fetching", "loading")
        assert seen["message"]
        with connect(server) as client:
            assert client.models.list().data[0].id == BASE
            with pytest.raises(openai.InternalServerError) as refusal:
                client.completions.create(model=BASE, prompt="a", max_tokens=1)
            assert (refusal.value.status_code, refusal.value.code) == (503, "model_not_ready")
            assert refusal.value.response.headers["Retry-After"]
            # Fetched by the server itself, from the local folder that was named, and loaded.
            server.wait_until_ready()
            assert json.loads((models / BASE / "source.json").read_text())["way"] == "local"
            # Told to stop in the middle of an answer: the answer is finished first.
            stream = client.completions.create(model=BASE, prompt="a", max_tokens=150, seed=1, stream=True)
            pieces = [next(iter(stream)).choices[0]]
            server.process.send_signal(signal.SIGTERM)
            pieces += [chunk.choices[0] for chunk in stream]
            assert pieces[-1].finish_reason in ("length", "stop")
            assert server.process.wait(60) == 0


def test_a_fetch_that_fails_is_said_with_its_reason(tmp_path: Path):
    missing = tmp_path / "nowhere"
    with running_model_server(
        tmp_path / "models",
        tmp_path / "checkpoints",
        environment={"RONDO_STARTER_MODEL": str(missing)},
        wait=False,
    ) as server:
        wait_for(lambda: server.health()["state"] == "failed")
        assert str(missing) in server.health()["message"]
        assert "there is no such folder" in server.health()["message"]


def test_a_full_queue_says_come_back_and_sigterm_calls_off_what_takes_too_long(folders: Folders):
    with (
        running_model_server(
            folders.models,
            folders.checkpoints,
            arguments=["--queue", "1", "--max-rows", "1", "--seconds-to-stop", "1"],
        ) as server,
        connect(server) as client,
    ):
        stream = begin_long_stream(client)
        answers: list[Any] = []
        waiting = threading.Thread(
            target=lambda: answers.append(client.completions.create(model=BASE, prompt="a", max_tokens=1))
        )
        waiting.start()
        wait_for(lambda: server.health()["waiting"] == 1)
        with pytest.raises(openai.RateLimitError) as refusal:
            client.completions.create(model=BASE, prompt="a", max_tokens=1)
        assert refusal.value.code == "queue_full"
        assert int(refusal.value.response.headers["Retry-After"]) > 0
        # The one who waited is answered as soon as the other leaves.
        stream.close()
        waiting.join(60)
        assert answers
        # A long answer does not keep the server from stopping.
        stream = begin_long_stream(client)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        stream.close()


def test_a_stream_whose_client_leaves_is_called_off(server: RunningServer, client: openai.OpenAI):
    begin_long_stream(client).close()
    started = time.monotonic()
    client.completions.create(model=BASE, prompt="a", max_tokens=1)
    calm = time.monotonic() - started
    # What was left of the stream would have taken far longer than it takes to be called off.
    assert server.health()["waiting"] == 0
    assert calm < 20


def test_a_whole_answer_whose_client_leaves_is_called_off(server: RunningServer, client: openai.OpenAI):
    address = urlsplit(server.url)
    body = json.dumps({"model": BASE, "prompt": "a", "max_tokens": LONG, "n": 16}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc}\r\n"
        f"Authorization: Bearer {server.key}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(head.encode() + body)
        wait_for(lambda: server.health()["computing"])
    wait_for(lambda: not server.health()["computing"], seconds=20)
    assert client.completions.create(model=BASE, prompt="a", max_tokens=1).choices


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that the server sets for its own process stays in this one."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setattr(startup, "log_to_stderr", lambda level: None)


@pytest.mark.usefixtures("quiet")
def test_it_does_not_start_without_a_key(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("RONDO_MODEL_SERVER_KEY", "")
    assert main(["--models", "m", "--checkpoints", "c"]) == 2
    assert "RONDO_MODEL_SERVER_KEY is not set" in capsys.readouterr().err


@pytest.mark.usefixtures("quiet")
def test_a_taken_port_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("RONDO_MODEL_SERVER_KEY", "k")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert main(["--models", "m", "--checkpoints", "c", "--port", str(port)]) == 2
    message = capsys.readouterr().err
    assert f"port {port}" in message
    assert "--port" in message


def test_it_listens_on_loopback_alone(server: RunningServer):
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    assert urlsplit(server.url).hostname == "127.0.0.1"


def test_the_http_side_imports_no_torch():
    # What answers first must not wait for torch, and the trainer's web side must not need it.
    heavy = "('torch', 'transformers', 'django')"
    code = f"import sys, training.serving.__main__; print([name for name in {heavy} if name in sys.modules])"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert ended.stdout.strip() == "[]"
