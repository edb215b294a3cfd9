"""Many clients at once: each gets the answer that it would have got alone, and nobody waits for another."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx
import openai
import pytest
import torch

from tests.model_server import RunningServer, running_model_server
from tests.serving.conftest import BASE, Folders, connect
from tests.serving.figures import figures
from tests.serving.test_life import LONG, begin_long_stream, wait_for
from training.rlhf.model.backbone import Backbone
from training.rlhf.rollout.generate import rollout
from training.rlhf.sampling import SamplingParameters

MODELS = (BASE, "warm", "hot", "reward")
TOKENS = 120


class ChatRequest(NamedTuple):
    """One client's request."""

    model: str
    content: str
    seed: int


REQUESTS = [
    ChatRequest(MODELS[n % 4], f"Question {n % 5}: why is it so?" * (1 + n % 3), n) for n in range(16)
]
"""Four models, prompts of different lengths, some of which several clients ask, and a seed each."""


@pytest.fixture(scope="module")
def alone(folders: Folders) -> dict[ChatRequest, str]:
    """The answer to each request on a backbone that holds its checkpoint alone and does nothing else."""
    answers = {}
    for model in MODELS:
        backbone = Backbone.load(folders.base, device="cpu", dtype=torch.float32)
        if model != BASE:
            backbone.load_adapter(model, folders.checkpoints / model)
        for chat in (request for request in REQUESTS if request.model == model):
            text = f"<|begin|><|im_start|>user\n{chat.content}<|im_end|>\n<|im_start|>assistant\n"
            prompt = backbone.tokenizer(text, add_special_tokens=False)["input_ids"]
            parameters = SamplingParameters(seed=chat.seed, max_tokens=TOKENS)
            [[sample]] = rollout(backbone, [prompt], parameters, adapter=None if model == BASE else model)
            answers[chat] = sample.text
    return answers


def streamed(server: RunningServer, request: ChatRequest) -> str:
    with connect(server) as client:
        messages: list[Any] = [{"role": "user", "content": request.content}]
        chunks = client.chat.completions.create(
            model=request.model, messages=messages, seed=request.seed, max_tokens=TOKENS, stream=True
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def all_at_once(server: RunningServer) -> dict[ChatRequest, str]:
    with ThreadPoolExecutor(len(REQUESTS)) as pool:
        texts = pool.map(lambda request: streamed(server, request), REQUESTS)
        return dict(zip(REQUESTS, texts, strict=True))


@pytest.fixture(scope="module")
def roomy(folders: Folders) -> Iterator[RunningServer]:
    """A server that has place for all requests and checkpoints at once."""
    with running_model_server(folders.models, folders.checkpoints) as running:
        yield running


def test_sixteen_streams_of_four_models_at_once_are_each_what_it_is_alone(
    roomy: RunningServer, alone: dict[ChatRequest, str]
):
    assert len(set(alone.values())) == 16, "a mix-up would show"
    most: list[float] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            most.append(figures(roomy)["rondo_running_rows"])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert all_at_once(roomy) == alone
    finally:
        done.set()
        watcher.join()
    assert max(most) > 8, "they were not answered together"


def test_with_places_for_fewer_checkpoints_and_answers_the_others_wait_and_are_answered_as_well(
    folders: Folders, alone: dict[ChatRequest, str]
):
    arguments = ["--max-adapters", "1", "--max-rows", "3", "--cache-tokens", "2048"]
    with running_model_server(folders.models, folders.checkpoints, arguments=arguments) as server:
        assert all_at_once(server) == alone
        assert figures(server)["rondo_adapters_loaded"] == 1


def patiently_streamed(server: RunningServer, request: ChatRequest) -> str:
    """Stream an answer; where too many wait already, ask again as the refusal says."""
    while True:
        try:
            return streamed(server, request)
        except openai.RateLimitError as refusal:
            time.sleep(float(refusal.response.headers["Retry-After"]))


@pytest.mark.long
def test_fifty_streams_at_once_each_end_and_the_server_answers_meanwhile(
    roomy: RunningServer, alone: dict[ChatRequest, str]
):
    requests = [REQUESTS[n % len(REQUESTS)] for n in range(50)]
    with ThreadPoolExecutor(len(requests)) as pool:
        began = time.monotonic()
        streams = [pool.submit(patiently_streamed, roomy, request) for request in requests]
        slowest = 0.0
        while not all(stream.done() for stream in streams):
            asked = time.monotonic()
            assert httpx.get(f"{roomy.url}/health", timeout=30, trust_env=False).status_code == 200
            slowest = max(slowest, time.monotonic() - asked)
            assert time.monotonic() - began < 300, "a stream never ended"
            time.sleep(0.05)
    assert [stream.result() for stream in streams] == [alone[request] for request in requests]
    assert slowest < 5
    wait_for(lambda: figures(roomy)["rondo_running_rows"] == 0)


@pytest.mark.long
def test_a_checkpoint_that_is_damaged_is_refused_and_the_others_are_answered(
    folders: Folders, roomy: RunningServer, alone: dict[ChatRequest, str]
):
    shutil.copytree(folders.checkpoints / "warm", folders.checkpoints / "damaged")
    weights = next((folders.checkpoints / "damaged").rglob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    try:
        with ThreadPoolExecutor(2) as pool, connect(roomy) as client:
            staying = pool.submit(streamed, roomy, REQUESTS[1])
            began = time.monotonic()
            with pytest.raises(openai.APIStatusError):
                client.completions.create(model="damaged", prompt="a", max_tokens=2)
            assert time.monotonic() - began < 30
            assert staying.result() == alone[REQUESTS[1]]
            assert streamed(roomy, REQUESTS[2]) == alone[REQUESTS[2]]
    finally:
        shutil.rmtree(folders.checkpoints / "damaged")


def test_a_short_answer_does_not_wait_for_a_long_one(roomy: RunningServer):
    with connect(roomy) as client:
        stream = begin_long_stream(client)
        client.completions.create(model="warm", prompt="a", max_tokens=2)
        # The long one still goes on.
        assert figures(roomy)["rondo_running_rows"] == 1
        stream.close()


def test_scores_and_comparisons_are_given_while_answers_are_written(roomy: RunningServer):
    with connect(roomy) as client:
        stream = begin_long_stream(client)
        chat = {"messages": [{"role": "user", "content": "a"}]}
        for path, body in (
            ("score", {"model": "reward", "completions": ["b"] * 20, **chat}),
            ("kl", {"model": "warm", "completion": "b", **chat}),
        ):
            response = httpx.post(
                f"{roomy.url}/v1/{path}",
                json=body,
                headers={"Authorization": f"Bearer {roomy.key}"},
                timeout=60,
                trust_env=False,
            )
            assert response.status_code == 200
        assert figures(roomy)["rondo_running_rows"] == 1
        before = figures(roomy)["rondo_tokens_total", "completion"]
        wait_for(lambda: figures(roomy)["rondo_tokens_total", "completion"] > before)
        stream.close()


def test_a_client_that_leaves_makes_place_and_disturbs_nobody(
    roomy: RunningServer, alone: dict[ChatRequest, str]
):
    request = REQUESTS[1]
    with connect(roomy) as client, ThreadPoolExecutor(1) as pool:
        leaving = [begin_long_stream(client) for _ in range(5)]
        staying = pool.submit(streamed, roomy, request)
        for stream in leaving:
            stream.close()
        assert staying.result() == alone[request]
    wait_for(lambda: figures(roomy)["rondo_running_rows"] == 0, seconds=20)


def test_a_request_that_cannot_be_answered_disturbs_nobody(
    roomy: RunningServer, alone: dict[ChatRequest, str], folders: Folders
):
    request = REQUESTS[2]
    with connect(roomy) as client, ThreadPoolExecutor(1) as pool:
        going = pool.submit(streamed, roomy, request)
        for model, prompt in (("nothing", "a"), (BASE, [5] * 2049), (BASE, [10**6])):
            with pytest.raises(openai.APIStatusError):
                client.completions.create(model=model, prompt=prompt, max_tokens=1)
        assert going.result() == alone[request]


# ── Deadlines ─────────────────────────────────────────────────────────────────────────


def test_an_answer_that_takes_longer_than_its_client_allows_is_broken_off(roomy: RunningServer):
    with connect(roomy) as client:
        for choices in (
            {"extra_body": {"timeout": 0.5}},
            {"extra_headers": {"X-Request-Timeout": "0.5"}},
            {"extra_body": {"timeout": 0.5}, "extra_headers": {"X-Request-Timeout": "100"}},
        ):
            begun = time.monotonic()
            with pytest.raises(openai.InternalServerError) as refusal:
                client.completions.create(model=BASE, prompt="a", max_tokens=LONG, temperature=0, **choices)
            assert (refusal.value.status_code, refusal.value.code) == (504, "deadline_exceeded")
            assert time.monotonic() - begun < 60
        # What was written until then has been told, then the error.
        stream = client.completions.create(
            model=BASE,
            prompt="a",
            max_tokens=LONG,
            temperature=0,
            stream=True,
            extra_body={"timeout": 0.7},
        )
        pieces: list[str] = []
        with pytest.raises(openai.APIError, match=r"after 0\.7 seconds"):
            pieces.extend(chunk.choices[0].text for chunk in stream)
        assert pieces
    wait_for(lambda: figures(roomy)["rondo_running_rows"] == 0)


def test_who_waits_beyond_his_time_is_told_so_and_the_server_has_a_bound_of_its_own(folders: Folders):
    arguments = ["--max-rows", "1", "--seconds-per-request", "3"]
    with (
        running_model_server(folders.models, folders.checkpoints, arguments=arguments) as server,
        connect(server) as client,
    ):
        stream = begin_long_stream(client)
        begun = time.monotonic()
        with pytest.raises(openai.InternalServerError) as refusal:
            client.completions.create(model=BASE, prompt="a", max_tokens=1, extra_body={"timeout": 0.5})
        assert refusal.value.code == "deadline_exceeded"
        assert time.monotonic() - begun < 2.5, "before the server's own bound"
        with pytest.raises(openai.APIError, match=r"after 3 seconds"):
            list(stream)
        assert client.completions.create(model=BASE, prompt="a", max_tokens=1).choices


@pytest.mark.parametrize("timeout", ["0", "-1", "soon", "nan", "inf"])
def test_a_timeout_that_is_no_time_is_refused(roomy: RunningServer, timeout: str):
    with connect(roomy) as client:
        with pytest.raises(openai.BadRequestError) as refusal:
            client.completions.create(
                model=BASE, prompt="a", max_tokens=1, extra_headers={"X-Request-Timeout": timeout}
            )
        assert refusal.value.param == "X-Request-Timeout"


# ── Bounds per key ────────────────────────────────────────────────────────────────────


def test_one_key_cannot_take_all_places(folders: Folders):
    with running_model_server(
        folders.models,
        folders.checkpoints,
        arguments=["--requests-per-key", "2"],
        environment={"RONDO_MODEL_SERVER_MORE_KEYS": "second-key, third-key"},
    ) as server:
        with connect(server) as first, connect(server, key="second-key") as second:
            streams = [begin_long_stream(first) for _ in range(2)]
            with pytest.raises(openai.RateLimitError, match="2 requests with this key") as refusal:
                first.completions.create(model=BASE, prompt="a", max_tokens=1)
            assert refusal.value.code == "too_many_in_flight"
            assert 1 <= int(refusal.value.response.headers["Retry-After"]) <= 60
            assert second.completions.create(model=BASE, prompt="a", max_tokens=1).choices
            # The web application says on whose behalf it asks; another program is not believed that.
            request: dict[str, Any] = {
                "model": BASE,
                "prompt": "a",
                "max_tokens": 1,
                "extra_headers": {"X-Rondo-Client": "token 7"},
            }
            assert first.completions.create(**request).choices
            streams += [begin_long_stream(second) for _ in range(2)]
            with pytest.raises(openai.RateLimitError):
                second.completions.create(**request)
            # Who leaves makes place.
            streams[0].close()
            wait_for(lambda: figures(server)["rondo_running_requests"] == 3)
            assert first.completions.create(model=BASE, prompt="a", max_tokens=1).choices
            for stream in streams:
                stream.close()
        assert figures(server)["rondo_requests_total", "refused", "/v1/completions"] == 2


# ── Stopping ──────────────────────────────────────────────────────────────────────────


def test_what_had_come_before_sigterm_is_answered_also_where_it_had_to_wait(
    folders: Folders, alone: dict[ChatRequest, str]
):
    arguments = ["--max-rows", "2", "--seconds-to-stop", "120"]
    with running_model_server(folders.models, folders.checkpoints, arguments=arguments) as server:
        with ThreadPoolExecutor(6) as pool:
            answers = [pool.submit(streamed, server, request) for request in REQUESTS[:6]]
            wait_for(lambda: server.health()["waiting"] == 4)
            server.process.send_signal(signal.SIGTERM)
            assert [answer.result() for answer in answers] == [alone[request] for request in REQUESTS[:6]]
        assert server.process.wait(60) == 0


# ── Figures ───────────────────────────────────────────────────────────────────────────


def test_prometheus_is_told_what_was_done(folders: Folders):
    with (
        running_model_server(folders.models, folders.checkpoints) as server,
        connect(server) as client,
    ):
        completion = client.completions.create(model="warm", prompt=[5] * 7, max_tokens=4, n=3, seed=1)
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="nothing", prompt="a", max_tokens=4)
        metrics = figures(server)
        assert completion.usage is not None
        # The prompt is read once for three answers.
        assert metrics["rondo_tokens_total", "prompt"] == 7
        assert metrics["rondo_tokens_total", "completion"] == completion.usage.completion_tokens
        assert metrics["rondo_requests_total", "answered", "/v1/completions"] == 1
        assert metrics["rondo_requests_total", "refused", "/v1/completions"] == 1
        assert metrics["rondo_request_seconds_count", "/v1/completions"] == 1
        assert metrics["rondo_queue_seconds_count", "/v1/completions"] == 1
        assert metrics["rondo_adapters_loaded"] == 1
        assert metrics["rondo_ready"] == 1
        assert metrics["rondo_queue_depth"] == metrics["rondo_running_rows"] == 0
        assert 0 < metrics["rondo_step_seconds_total"] < 60


def test_the_figures_need_the_key(roomy: RunningServer):
    refusal = httpx.get(f"{roomy.url}/metrics", trust_env=False)
    assert refusal.status_code == 401
    assert "rondo" not in refusal.text


def test_health_says_how_many_wait(roomy: RunningServer):
    health = roomy.health()
    assert (health["waiting"], health["computing"]) == (0, False)
    assert json.dumps(health)
