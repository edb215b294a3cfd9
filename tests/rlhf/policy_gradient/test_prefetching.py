"""Batches drawn ahead: the bound on staleness, the overlap of sampling and learning, and a prompt end."""

from __future__ import annotations

import functools
import json
import math
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.rlhf.policy_gradient.sampled_runs import GRPO, make_sampled_run
from tests.rlhf.runs import StopAfter, files_of, train
from training.contract import read_metrics
from training.contract.methods.policy import KlSettings, UpdateSettings
from training.contract.run import EXIT_FINISHED, EXIT_STOPPED, read_samples
from training.model_server import ModelServer, ServerError
from training.rlhf.policy_gradient import loop as policy_gradient_run
from training.rlhf.policy_gradient.credit import Credit, EpisodeBatch
from training.rlhf.policy_gradient.loop import SamplingLoop
from training.rlhf.policy_gradient.rollout_servers import Prefetcher, ServedPolicy
from training.rlhf.policy_gradient.update import Evaluated, PolicyObjective, Tally, Window

SECONDS = 60.0
"""Longest wait for what must happen; a test that needs it has failed."""


# ── The bound ─────────────────────────────────────────────────────────────────────────


@given(
    most=st.integers(0, 4),
    first=st.integers(0, 3),
    steps=st.integers(1, 8),
    draws=st.lists(st.sampled_from([0.0, 0.0, 0.002, 0.004]), min_size=11, max_size=11),
    learns=st.lists(st.sampled_from([0.0, 0.0, 0.002, 0.004]), min_size=11, max_size=11),
)
def test_no_batch_is_ever_drawn_by_a_policy_further_behind_than_the_bound(
    most: int, first: int, steps: int, draws: list[float], learns: list[float]
):
    order: list[int] = []

    def draw(number: int, policy: int) -> tuple[int, int]:
        order.append(number)
        time.sleep(draws[number])
        return number, policy

    ahead = Prefetcher(draw, most=most)
    last = first + steps
    for step in range(first, last):
        result = ahead.take(step, lambda number: number, policy=step, last=last, stopped=lambda: False)
        assert result is not None
        number, policy = result
        assert number == step
        assert max(first, step - most) <= policy <= step
        time.sleep(learns[step])
    ahead.close()
    # Each batch once, in order, and none beyond the last step.
    assert order == list(range(first, last))


def test_nothing_is_drawn_ahead_where_staleness_is_0():
    order: list[int] = []

    def draw(number: int, policy: int) -> int:
        order.append(number)
        return policy

    ahead = Prefetcher(draw, most=0)
    for step in range(3):
        assert ahead.take(step, lambda number: number, policy=step, last=3, stopped=lambda: False) == step
        assert order == list(range(step + 1))
    ahead.close()


def test_who_is_asked_to_stop_waits_no_longer_and_what_waits_is_not_begun():
    release, begun = threading.Event(), threading.Event()
    drawn: list[int] = []

    def draw(number: int, policy: int) -> int:
        begun.set()
        assert release.wait(SECONDS)
        drawn.append(number)
        return policy

    ahead = Prefetcher(draw, most=3)
    result = ahead.take(0, lambda number: number, policy=0, last=9, stopped=begun.is_set)
    assert result is None
    ahead.give_up()
    release.set()
    ahead.close()
    assert drawn == [0]


# ── Sampling and learning overlap ─────────────────────────────────────────────────────


@dataclass
class SlowServer:
    """A vLLM that answers with fixed tokens. `hold` may wait before a batch's answers are given."""

    events: list[str] = field(default_factory=list)
    learning: threading.Event = field(default_factory=threading.Event)
    """The trainer has begun to learn from its first batch."""
    batch_two_is_asked: threading.Event = field(default_factory=threading.Event)
    hold: bool = False
    requests: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        if not request.url.path.endswith("/completions"):
            return httpx.Response(200, text="Success")
        with self.lock:
            self.requests += 1
            number = self.requests
            self.events.append(f"asked {number}")
        if self.hold and number > 4:
            # The second batch: its answers come once the trainer learns from the first.
            self.batch_two_is_asked.set()
            assert self.learning.wait(SECONDS)
        choices = [
            {
                "index": index,
                "token_ids": [70 + (body["seed"] + index) % 9] * (1 + (body["seed"] + index) % 5),
                "logprobs": {"token_logprobs": [-5.0] * (1 + (body["seed"] + index) % 5)},
                "finish_reason": "length",
            }
            for index in range(body["n"])
        ]
        return httpx.Response(200, json={"choices": choices})


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlowServer:
    """A slow server that draws for the runs of a test."""
    server = SlowServer()
    adapters = tmp_path / "adapters"
    adapters.mkdir()
    monkeypatch.setenv("RONDO_ROLLOUT_URL", "http://slow.example")
    monkeypatch.setenv("RONDO_ROLLOUT_FOLDER", str(adapters))
    transport = httpx.MockTransport(server)
    monkeypatch.setattr(
        policy_gradient_run, "ServedPolicy", functools.partial(ServedPolicy, transport=transport)
    )
    return server


def run_of(folder: Path, base: Path, *, staleness: int, steps: int = 4) -> Path:
    server = {"kind": "vllm", "max_staleness": staleness}
    return make_sampled_run(
        folder,
        base,
        GRPO,
        settings={
            "rollout": {"samples": 4, "max_tokens": 12, "server": server},
            "update": {"truncate": 2.0},
        },
        optimiser={"batch_size": 4, "epochs": 20, "max_steps": steps, "save_every": 1},
    )


def test_servers_sample_the_next_batch_while_the_trainer_learns(
    base: Path, tmp_path: Path, slow: SlowServer, monkeypatch: pytest.MonkeyPatch
):
    slow.hold = True
    update = SamplingLoop._update

    def learn(loop: SamplingLoop, step: int, *arguments: Any) -> Any:
        slow.events.append(f"learns {step}")
        slow.learning.set()
        # Without overlap the second batch would be asked for after this only.
        assert slow.batch_two_is_asked.wait(SECONDS)
        return update(loop, step, *arguments)

    monkeypatch.setattr(SamplingLoop, "_update", learn)
    run = run_of(tmp_path / "run", base, staleness=1)
    assert train(run) == EXIT_FINISHED
    lines = read_metrics(run)
    assert [line["staleness"] for line in lines] == [0, 1, 1, 1]
    assert [line["staleness_max"] for line in lines] == [0, 1, 1, 1]
    assert [read_samples(run, step)[0].version for step in (1, 2, 3, 4)] == [0, 0, 1, 2]
    assert slow.events.index("learns 0") < slow.events.index("learns 1")
    assert all(0 <= line["importance_truncated"] <= 1 for line in lines)
    assert list((tmp_path / "adapters").iterdir()) == []


def test_without_staleness_every_batch_is_of_the_policy_that_learns_and_two_runs_are_equal(
    base: Path, tmp_path: Path, slow: SlowServer
):
    runs = [run_of(tmp_path / name, base, staleness=0) for name in ("one", "two")]
    assert train(runs[0]) == EXIT_FINISHED
    assert train(runs[1], StopAfter(runs[1], 2)) == EXIT_STOPPED
    assert train(runs[1]) == EXIT_FINISHED
    assert {line["staleness_max"] for run in runs for line in read_metrics(run)} == {0}
    first, second = (files_of(run / "checkpoint") for run in runs)
    name = "adapter_model.safetensors"
    assert first[name] == second[name]


def test_a_resumed_run_samples_again_what_was_in_flight_and_says_so(
    base: Path, tmp_path: Path, slow: SlowServer
):
    run = run_of(tmp_path / "run", base, staleness=2)
    assert train(run, StopAfter(run, 2)) == EXIT_STOPPED
    assert "sampled again" not in (run / "log.txt").read_text()
    before = slow.requests
    assert train(run) == EXIT_FINISHED
    assert (
        "What was being sampled for later steps when the run ended is sampled again"
        in (run / "log.txt").read_text()
    )
    lines = read_metrics(run)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    # The policy of the third step draws its batch anew.
    assert lines[2]["staleness"] == 0
    assert max(line["staleness_max"] for line in lines) <= 2
    # The third step has four prompts, the fourth the one that is left of the epoch.
    assert slow.requests - before == 4 + 1


# ── A prompt end ──────────────────────────────────────────────────────────────────────


@pytest.fixture
def silent() -> Iterator[tuple[str, threading.Event, threading.Event]]:
    """A server that takes a request and never answers: its address, request seen, connection closed."""
    seen, closed = threading.Event(), threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            seen.set()
            while connection.recv(65536):
                pass
            closed.set()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}", seen, closed
    listener.close()


def test_a_request_that_waits_for_an_answer_is_broken_off_at_once(
    silent: tuple[str, threading.Event, threading.Event],
):
    url, seen, closed = silent
    server = ModelServer(name="the server", url=url, key="", timeout=600, attempts=3, pause=600)
    errors: list[Exception] = []

    def ask() -> None:
        try:
            server.post("/v1/completions", {})
        except ServerError as error:
            errors.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    assert seen.wait(SECONDS)
    server.abort()
    thread.join(SECONDS)
    assert not thread.is_alive(), "the request still waits"
    assert len(errors) == 1
    # The server sees that nobody waits for its answer any more.
    assert closed.wait(SECONDS)
    with pytest.raises(ServerError, match="the request to the server was broken off"):
        server.post("/v1/completions", {})


def test_a_run_that_is_cancelled_while_servers_sample_stops_at_once(
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    silent: tuple[str, threading.Event, threading.Event],
):
    url, seen, closed = silent
    adapters = tmp_path / "checkpoints"
    adapters.mkdir()
    monkeypatch.setenv("RONDO_ROLLOUT_URL", url)
    monkeypatch.setenv("RONDO_ROLLOUT_FOLDER", str(adapters))
    # Rondo's own server is told of no adapter: the first request is for answers.
    server = {"kind": "rondo", "max_staleness": 1}
    run = make_sampled_run(
        tmp_path / "run",
        base,
        GRPO,
        settings={"rollout": {"samples": 2, "max_tokens": 12, "server": server}, "update": {"truncate": 2.0}},
        optimiser={"batch_size": 1},
    )

    def cancel() -> None:
        assert seen.wait(SECONDS)
        (run / "cancel").touch()

    threading.Thread(target=cancel, daemon=True).start()
    assert train(run) == EXIT_STOPPED
    assert closed.wait(SECONDS)
    assert list(adapters.iterdir()) == []


# ── Truncated weights ─────────────────────────────────────────────────────────────────


def test_weights_of_stale_samples_are_truncated_and_counted():
    # π / μ of four tokens: 1/2, 1, 4 and 8; the fifth is padding. Truncated at 2: 1/2, 1, 2, 2.
    ratios = torch.tensor([[0.5, 1.0, 4.0], [8.0, 99.0, 99.0]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    old = torch.full((2, 3), math.log(0.1))
    advantages = torch.tensor([[1.0, 1.0, 1.0], [-1.0, 0.0, 0.0]])
    episodes = EpisodeBatch(
        mask=mask,
        rewards=torch.zeros(2, 3),
        scored=torch.tensor([True, True]),
        group=torch.tensor([0, 0]),
        old_logp=old,
        behaviour_logp=old - ratios.log(),
    )
    objective = PolicyObjective(
        episodes,
        Credit(advantages, None, torch.zeros(2, 3), torch.tensor([False])),
        settings=UpdateSettings(truncate=2.0),
        kl=KlSettings(place="none"),
        beta=0.0,
        constant=None,
    )
    tally = Tally()
    logp = old.clone().requires_grad_()
    terms = objective.terms([0, 1], Evaluated(logp), Window(tokens=4.0, answers=2.0), tally)
    # −(1/2 · 1 + 1 · 1 + 2 · 1 − 2 · 1) / 4, the ratio of new to old being 1.
    assert float(terms["policy_loss"].detach()) == pytest.approx(-1.5 / 4)
    terms["policy_loss"].backward()
    assert logp.grad is not None
    expected = torch.tensor([[-0.5, -1.0, -2.0], [2.0, 0.0, 0.0]]) / 4
    torch.testing.assert_close(logp.grad, expected)
    figures = tally.figures()
    assert figures["importance_weight"] == pytest.approx(5.5 / 4)
    assert figures["importance_truncated"] == pytest.approx(2 / 4)
