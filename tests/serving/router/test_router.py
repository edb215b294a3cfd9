"""Two bases of different families behind one address: started on demand, asleep when idle or out of room."""

from __future__ import annotations

import json
import shutil
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from tests.model_server import RunningServer, running_model_server
from tests.rlhf.model.families import family_folder
from tests.serving.conftest import BASE, Folders, connect, write_checkpoint
from tests.serving.figures import figures
from tests.tiny import tiny_model_folder
from training.serving import startup
from training.serving.router.__main__ import main

pytestmark = pytest.mark.slow
MODULE = "training.serving.router"
OTHER = "tiny-qwen2"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """A tiny Llama and a tiny Qwen2, each with a checkpoint."""
    root = tmp_path_factory.mktemp("two")
    paths = Folders(root / "models", root / "checkpoints")
    tiny_model_folder(paths.base)
    family_folder(paths.models / OTHER, "qwen2", seed=1)
    write_checkpoint(paths.base, paths.checkpoints / "llama-policy", trained=0.3, seed=1)
    write_checkpoint(paths.models / OTHER, paths.checkpoints / "qwen-policy", trained=0.3, seed=2)
    write_checkpoint(paths.models / OTHER, paths.checkpoints / "qwen-reward", kind="reward", trained=0.3)
    return paths


@pytest.fixture(scope="module")
def router(two: Folders) -> Iterator[RunningServer]:
    """The router of both."""
    with running_model_server(two.models, two.checkpoints, module=MODULE) as running:
        yield running


@pytest.fixture(scope="module")
def client(router: RunningServer) -> Iterator[openai.OpenAI]:
    with connect(router) as client:
        yield client


def chat(client: openai.OpenAI, model: str, **more: Any) -> str:
    completion = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "What is the sun?"}],
        max_tokens=8,
        seed=1,
        **more,
    )
    return str(completion.choices[0].message.content)


def post(server: RunningServer, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(
        f"{server.url}{path}",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def bases(server: RunningServer) -> dict[str, dict[str, Any]]:
    return {base["name"]: base for base in server.health()["bases"]}


def until(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.1)


def test_models_of_every_base_are_listed_with_their_base(client: openai.OpenAI):
    listed = {model.id: model.model_dump() for model in client.models.list()}
    assert {name: model["base"] for name, model in listed.items()} == {
        BASE: BASE,
        OTHER: OTHER,
        "llama-policy": BASE,
        "qwen-policy": OTHER,
        "qwen-reward": OTHER,
    }
    assert listed["qwen-reward"]["kind"] == "reward"


def test_a_request_wakes_its_base_and_is_answered_as_by_a_server_of_that_base_alone(
    two: Folders, router: RunningServer, client: openai.OpenAI
):
    assert bases(router)[OTHER]["state"] == "asleep"
    answers = {name: chat(client, name) for name in (OTHER, "qwen-policy", BASE, "llama-policy")}
    with (
        running_model_server(two.models, two.checkpoints, arguments=["--base", OTHER]) as alone,
        connect(alone) as directly,
    ):
        for name in (OTHER, "qwen-policy"):
            assert chat(directly, name) == answers[name]
    assert len(set(answers.values())) == 4


def test_answers_stream_through_the_router(client: openai.OpenAI):
    whole = chat(client, "qwen-policy")
    stream = client.chat.completions.create(
        model="qwen-policy",
        messages=[{"role": "user", "content": "What is the sun?"}],
        max_tokens=8,
        seed=1,
        stream=True,
    )
    pieces = [piece.choices[0].delta.content or "" for piece in stream if piece.choices]
    assert "".join(pieces) == whole


def test_scores_and_divergences_stay_within_one_base(router: RunningServer):
    request = {"messages": [{"role": "user", "content": "Why?"}]}
    status, scored = post(
        router, "/v1/score", {**request, "model": "qwen-reward", "completions": ["So.", "Not so."]}
    )
    assert (status, len(scored["scores"])) == (200, 2)
    status, response = post(router, "/v1/kl", {**request, "model": "qwen-policy", "completion": "So."})
    assert (status, response["reference"]) == (200, OTHER)
    status, refused = post(
        router, "/v1/kl", {**request, "model": "qwen-policy", "completion": "So.", "reference": BASE}
    )
    assert (status, refused["error"]["code"]) == (409, "base_mismatch")


def test_figures_of_every_awake_base_bear_its_name(router: RunningServer, client: openai.OpenAI):
    for base in (BASE, OTHER):
        chat(client, base)
    metrics = figures(router)
    assert (metrics["rondo_ready", BASE], metrics["rondo_ready", OTHER]) == (1, 1)
    assert metrics["rondo_base_awake", OTHER] == 1
    assert metrics["rondo_tokens_total", BASE, "completion"] > 0


@pytest.mark.parametrize(
    ("model", "status", "code"), [("nobody", 404, "model_not_found"), ("../x", 404, "model_not_found")]
)
def test_an_unknown_model_is_refused_without_waking_anything(
    model: str, status: int, code: str, router: RunningServer
):
    body = {"model": model, "messages": [{"role": "user", "content": "Why?"}]}
    actual_status, response = post(router, "/v1/chat/completions", body)
    assert (actual_status, response["error"]["code"]) == (status, code)


def test_a_body_that_is_no_request_is_refused_by_the_server_of_the_default_base(router: RunningServer):
    status, response = post(router, "/v1/chat/completions", {"messages": []})
    assert (status, response["error"]["param"]) == (400, "model")


def test_without_the_key_nothing_is_told(router: RunningServer):
    with connect(router, key="wrong") as stranger, pytest.raises(openai.AuthenticationError):
        chat(stranger, BASE)
    with urllib.request.urlopen(f"{router.url}/health", timeout=30) as response:
        assert "bases" not in json.load(response)


@pytest.mark.long
def test_a_server_that_was_killed_is_started_again_by_the_next_request(
    router: RunningServer, client: openai.OpenAI
):
    before = chat(client, OTHER)
    for child in psutil.Process(router.process.pid).children():
        if OTHER in child.cmdline():
            child.kill()
            child.wait(10)
    until(lambda: bases(router)[OTHER]["state"] == "failed")
    assert "ended with status -9" in bases(router)[OTHER]["message"]
    assert chat(client, OTHER) == before


@pytest.mark.long
@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_base_whose_download_broke_off_is_refused_soon_and_the_others_are_answered(
    two: Folders, router: RunningServer, client: openai.OpenAI, file: str
):
    cut = two.models / f"cut-{file.partition('.')[0]}"
    shutil.copytree(two.base, cut)
    (cut / file).write_bytes((cut / file).read_bytes()[: (cut / file).stat().st_size // 2])
    try:
        until(lambda: cut.name in bases(router))
        began = time.monotonic()
        status, body = post(
            router,
            "/v1/chat/completions",
            {"model": cut.name, "messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
        )
        assert time.monotonic() - began < 45
        assert status >= 400
        assert body["error"]["message"]
        assert chat(client, BASE)
    finally:
        shutil.rmtree(cut)


@pytest.mark.long
def test_no_server_of_a_base_outlives_the_router(two: Folders, tmp_path: Path):
    with running_model_server(two.models, two.checkpoints, module=MODULE) as running:
        children = psutil.Process(running.process.pid).children()
        assert len(children) == 1
        running.process.send_signal(signal.SIGKILL)
        running.process.wait(10)
        _, alive = psutil.wait_procs(children, timeout=20)
        assert alive == []


def test_the_router_says_what_is_wrong_with_its_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("RONDO_MODEL_SERVER_KEY", raising=False)
    monkeypatch.setattr(startup, "log_to_stderr", lambda level: None)
    assert main(["--models", str(tmp_path), "--checkpoints", str(tmp_path)]) == 2
    assert "RONDO_MODEL_SERVER_KEY is not set" in capsys.readouterr().err
