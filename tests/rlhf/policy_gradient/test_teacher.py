"""Distillation from a teacher on a server: our own model server, and servers that answer otherwise."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from tests.model_server import RunningServer, running_model_server
from tests.rlhf.loop.test_interruptions import same_run
from tests.rlhf.loop.trainers import Trainer, group
from tests.rlhf.policy_gradient.sampled_runs import GRPO, make_sampled_run
from tests.rlhf.policy_gradient.test_processes import assert_same_run
from tests.rlhf.runs import StopAfter, files_of, status_of, train
from tests.tiny import tiny_model_folder, tiny_tokenizer
from training.contract import ContractError, read_metrics
from training.contract.methods import settings_from_json
from training.contract.methods.policy import AdvantageSettings, KlSettings, TeacherSettings
from training.contract.run import EXIT_FAILED, EXIT_FINISHED, EXIT_STOPPED, read_samples
from training.model_server import ServerError
from training.rlhf.policy_gradient.credit import CreditAssignment, EpisodeBatch
from training.rlhf.policy_gradient.teacher import ServedTeacher, TeacherError
from training.rlhf.tokens.encoding import EncodedAnswer

BASE = "SmolLM2-135M-Instruct"
TEACHER = "teacher"
OF_TOKENS: dict[str, Any] = {
    "advantage": {"kind": "return", "gamma": 0.0},
    "kl": {"place": "reward", "kind": "k1", "beta": 1.0},
    "update": {"loss": "distil"},
}
REWARDS = [{"name": "short", "kind": "length"}]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny_model_folder(folder / BASE)
    return folder


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, Path]]:
    """Our model server, and the teacher's checkpoint that it serves."""
    checkpoints = tmp_path_factory.mktemp("checkpoints")
    run = make_sampled_run(tmp_path_factory.mktemp("run"), models / BASE, GRPO, name=TEACHER)
    assert train(run) == EXIT_FINISHED
    (run / "checkpoint").rename(checkpoints / TEACHER)
    with running_model_server(models, checkpoints) as running:
        yield running, checkpoints / TEACHER


@pytest.fixture
def there(server: tuple[RunningServer, Path], monkeypatch: pytest.MonkeyPatch) -> RunningServer:
    """The trainer's environment names the server."""
    monkeypatch.setenv("RONDO_TEACHER_URL", server[0].url)
    monkeypatch.setenv("RONDO_TEACHER_KEY", server[0].key)
    return server[0]


@pytest.fixture(scope="module")
def tokenizer(models: Path) -> Any:
    return AutoTokenizer.from_pretrained(models / BASE)


def distilled(folder: Path, models: Path, settings: dict[str, Any], **optimiser: Any) -> Path:
    return make_sampled_run(
        folder,
        models / BASE,
        OF_TOKENS,
        settings={"rollout": {"samples": 4, "max_tokens": 8}, **settings},
        optimiser={"batch_size": 5, "epochs": 4, "learning_rate": 0.01, **optimiser},
    )


# ── The reward of a token ─────────────────────────────────────────────────────────────


def test_each_token_earns_how_much_likelier_the_teacher_finds_it_and_nothing_else():
    """β = 2, γ = 0: 2 (−1 + 3), 2 (−2 + 0.5) and, of the other answer, 2 (−0.5 + 0.5)."""
    episodes = EpisodeBatch(
        mask=torch.tensor([[True, True], [True, False]]),
        rewards=torch.tensor([[0.0, 100.0], [-100.0, 0.0]]),
        scored=torch.tensor([True, True]),
        group=torch.tensor([0, 0]),
        old_logp=torch.tensor([[-3.0, -0.5], [-0.5, math.nan]]),
        ref_logp=torch.tensor([[-1.0, -2.0], [-0.5, math.nan]]),
    )
    advantage = AdvantageSettings(kind="return", gamma=0.0)
    kl = KlSettings(place="reward", kind="k1", beta=2.0)
    credit = CreditAssignment(advantage, kl, distils=True).assign(episodes)
    assert credit.advantages.tolist() == [[4.0, -3.0], [0.0, 0.0]]


# ── Our own model server ──────────────────────────────────────────────────────────────


def test_a_policy_learns_from_a_served_teacher_what_it_learns_from_its_checkpoint(
    there: RunningServer, server: tuple[RunningServer, Path], models: Path, tmp_path: Path
):
    here = distilled(tmp_path / "here", models, {"reference": str(server[1])})
    served = distilled(tmp_path / "served", models, {"teacher": {"model": TEACHER}})
    assert train(here) == train(served) == EXIT_FINISHED
    lines = read_metrics(here), read_metrics(served)
    assert lines[0][0]["kl"] > 0.1
    for one, other in zip(*lines, strict=True):
        for name in ("kl", "kl_base", "policy_loss", "gradient_norm", "reward", "length"):
            assert other[name] == pytest.approx(one[name], abs=1e-3, rel=1e-3), name
    first = [read_samples(run, 1) for run in (here, served)]
    assert first[1]
    assert [sample.text for sample in first[1]] == [sample.text for sample in first[0]]
    for one, other in zip(*first, strict=True):
        assert [token.kl for token in other.tokens] == pytest.approx(
            [token.kl for token in one.tokens], abs=1e-4
        )
    weights = [load_file(run / "checkpoint" / "adapter_model.safetensors") for run in (here, served)]
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, atol=1e-4, rtol=1e-3)
    for content in files_of(served).values():
        assert there.key.encode() not in content


def test_a_policy_comes_nearer_to_its_served_teacher(there: RunningServer, models: Path, tmp_path: Path):
    run = distilled(tmp_path / "run", models, {"teacher": {"model": TEACHER}}, epochs=25)
    assert train(run) == EXIT_FINISHED
    divergence = [line["kl"] for line in read_metrics(run)]
    assert sum(divergence[-3:]) < 0.5 * sum(divergence[:3])


class Relay(BaseHTTPRequestHandler):
    """Hands requests on to our server; once `left` are answered it is overloaded."""

    target = ""
    left = 0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {"Authorization": self.headers["Authorization"], "Content-Type": "application/json"}
        Relay.left -= 1
        status, content = 503, b""
        if Relay.left >= 0:
            answer = httpx.post(Relay.target + self.path, content=body, headers=headers, timeout=60)
            status, content = answer.status_code, answer.content
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


def test_a_teacher_that_dies_ends_the_run_in_words_and_it_goes_on_later(
    there: RunningServer, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("training.rlhf.policy_gradient.teacher.PAUSE_SECONDS", 0.0)
    run = distilled(tmp_path / "run", models, {"teacher": {"model": TEACHER}}, save_every=1)
    # The vocabulary, 20 responses in each of two steps, and some of the third.
    Relay.target, Relay.left = there.url, 1 + 20 + 20 + 5
    with ThreadingHTTPServer(("127.0.0.1", 0), Relay) as relay:
        threading.Thread(target=relay.serve_forever, daemon=True).start()
        monkeypatch.setenv("RONDO_TEACHER_URL", f"http://127.0.0.1:{relay.server_port}")
        assert train(run) == EXIT_FAILED
        message = status_of(run).message
        assert "answered with status 503" in message
        assert "start again: training goes on from the last save" in message
        assert len(read_metrics(run)) == 2
        Relay.left = 1000
        assert train(run) == EXIT_FINISHED
        whole = same_run(run, tmp_path / "whole")
        assert train(whole) == EXIT_FINISHED
        relay.shutdown()
    assert [line["step"] for line in read_metrics(run)] == [1, 2, 3, 4]
    assert files_of(run / "checkpoint") == files_of(whole / "checkpoint")


def test_a_run_that_is_stopped_between_two_questions_to_its_teacher_can_be_started_again(
    there: RunningServer, models: Path, tmp_path: Path
):
    run = distilled(tmp_path / "run", models, {"teacher": {"model": TEACHER}})
    assert train(run, StopAfter(run, 2)) == EXIT_STOPPED
    assert train(run) == EXIT_FINISHED
    assert len(read_metrics(run)) == 4


def test_a_run_without_the_address_of_its_teacher_fails_before_it_samples(models: Path, tmp_path: Path):
    run = distilled(tmp_path / "run", models, {"teacher": {"model": TEACHER}})
    assert train(run) == EXIT_FAILED
    assert "RONDO_TEACHER_URL is not set" in status_of(run).message
    assert not (run / "metrics.jsonl").exists()


def test_our_server_refuses_to_teach_a_policy_with_other_tokens(there: RunningServer):
    policy = tiny_tokenizer(corpus=("pack my box with five dozen liquor jugs", "how vexingly quick"))
    with pytest.raises(TeacherError) as refused:
        ServedTeacher(TeacherSettings(model=TEACHER), policy)
    assert refused.value.code == "other_tokenizer"


@pytest.mark.slow
def test_two_processes_learn_from_a_served_teacher_what_one_does(
    there: RunningServer, models: Path, tmp_path: Path
):
    """Of 3 prompts a step the processes ask about 2 and 1."""
    teacher = {"teacher": {"model": TEACHER}}
    single = distilled(tmp_path / "one", models, teacher, batch_size=3, epochs=1, learning_rate=1e-3)
    two = same_run(single, tmp_path / "two")
    assert train(single) == EXIT_FINISHED
    address = {"RONDO_TEACHER_URL": there.url, "RONDO_TEACHER_KEY": there.key}
    trainers = [Trainer(two, variables={**variables, **address}) for variables in group(2)]
    assert [trainer.wait() for trainer in trainers] == [EXIT_FINISHED] * 2
    assert_same_run(two, single)


# ── Servers that answer otherwise ─────────────────────────────────────────────────────

Handle = Callable[[httpx.Request], httpx.Response]


def answer_of(tokenizer: Any, request: httpx.Request, **changes: Any) -> httpx.Response:
    """Answer as OpenAI's completions do: log p of token n is −n."""
    ids = json.loads(request.content)["prompt"]
    logprobs = {
        "tokens": [tokenizer.decode([id]) for id in ids],
        "token_logprobs": [None, *(-float(place) for place in range(1, len(ids)))],
        **changes,
    }
    return httpx.Response(200, json={"choices": [{"index": 0, "logprobs": logprobs}]})


def mocked(tokenizer: Any, handle: Handle, **more: Any) -> ServedTeacher:
    return ServedTeacher(
        TeacherSettings(model=TEACHER),
        tokenizer,
        environment={"RONDO_TEACHER_URL": "http://teacher/v1/", "RONDO_TEACHER_KEY": "k"},
        pause=0.0,
        transport=httpx.MockTransport(handle),
        **more,
    )


def test_the_drawn_tokens_alone_are_told_each_after_all_before_it(tokenizer: Any):
    requests: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return answer_of(tokenizer, request)

    ids = tuple(tokenizer("one two three four five six")["input_ids"])
    with mocked(tokenizer, handle) as teacher:
        plain, with_turns = teacher.log_probabilities(
            [EncodedAnswer(ids, 2), EncodedAnswer(ids[:6], 1, learned=((0, 2), (4, 5)))]
        ) or ([], [])
    assert plain == [-float(place) for place in range(2, len(ids))]
    assert with_turns == [-1.0, -2.0, -5.0]
    assert {str(request.url) for request in requests} == {"http://teacher/v1/completions"}
    assert {request.headers["Authorization"] for request in requests} == {"Bearer k"}
    body = json.loads(requests[0].content)
    assert (body["model"], body["echo"], body["max_tokens"], body["logprobs"]) == (TEACHER, True, 0, 1)
    assert len(set(body["prompt"])) == len(body["prompt"]) == 64


def test_a_token_that_the_server_draws_in_any_case_is_left_out(tokenizer: Any):
    def handle(request: httpx.Request) -> httpx.Response:
        ids = json.loads(request.content)["prompt"]
        texts = [*(tokenizer.decode([id]) for id in ids), " drawn"]
        return answer_of(
            tokenizer, request, tokens=texts, token_logprobs=[None, *[-2.0] * (len(ids) - 1), -9.0]
        )

    with mocked(tokenizer, handle) as teacher:
        assert teacher.log_probabilities([EncodedAnswer((1, 2, 3), 1)]) == [[-2.0, -2.0]]


def test_a_busy_server_is_asked_again(tokenizer: Any):
    statuses = iter([503, 429, 200])

    def handle(request: httpx.Request) -> httpx.Response:
        status = next(statuses)
        return answer_of(tokenizer, request) if status == 200 else httpx.Response(status)

    mocked(tokenizer, handle).close()
    assert next(statuses, None) is None


def test_a_server_that_stays_away_is_no_wrong_teacher(tokenizer: Any):
    asked: list[int] = []

    def handle(_request: httpx.Request) -> httpx.Response:
        asked.append(1)
        return httpx.Response(503)

    with pytest.raises(ServerError) as failed:
        mocked(tokenizer, handle)
    assert (failed.value.status, len(asked)) == (503, 6)


def test_a_teacher_with_another_tokenizer_is_refused(tokenizer: Any):
    """Its vocabulary differs in one token, late in it."""
    vocabulary = sorted(tokenizer.get_vocab().values())

    def handle(request: httpx.Request) -> httpx.Response:
        ids = json.loads(request.content)["prompt"]
        other = {vocabulary[-1]: " elsewhere"}
        texts = [other.get(id, tokenizer.decode([id])) for id in ids]
        return answer_of(tokenizer, request, tokens=texts)

    with pytest.raises(TeacherError) as refused:
        mocked(tokenizer, handle)
    assert refused.value.code == "other_tokenizer"


def test_a_response_whose_tokens_come_back_shifted_is_refused(tokenizer: Any):
    """A server that puts a token of its own before the prompt tells as many, each a place too late."""
    probed: list[int] = []

    def handle(request: httpx.Request) -> httpx.Response:
        if not probed:
            probed.append(1)
            return answer_of(tokenizer, request)
        ids = json.loads(request.content)["prompt"]
        return answer_of(tokenizer, request, tokens=["<s>", *(tokenizer.decode([id]) for id in ids[:-1])])

    ids = tuple(tokenizer("one two three four")["input_ids"])
    with mocked(tokenizer, handle) as teacher, pytest.raises(TeacherError) as refused:
        teacher.log_probabilities([EncodedAnswer(ids, 2)])
    assert refused.value.code == "other_tokenizer"


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        # llama.cpp: the token that it draws, and no other.
        {"tokens": ["a"], "token_logprobs": [-0.5]},
        {"token_logprobs": [None]},
        {"token_logprobs": [None] * 64},
        {"token_logprobs": [None, *[0.5] * 63]},
        {"token_logprobs": [None, *["-1"] * 63]},
    ],
)
def test_a_server_without_log_probabilities_of_given_tokens_is_refused(tokenizer: Any, logprobs: Any):
    def handle(request: httpx.Request) -> httpx.Response:
        if logprobs is None:
            return httpx.Response(200, json={"choices": [{"index": 0, "text": "", "logprobs": None}]})
        return answer_of(tokenizer, request, **logprobs)

    with pytest.raises(TeacherError) as refused:
        mocked(tokenizer, handle)
    assert refused.value.code == "no_log_probabilities"


def test_nothing_is_waited_for_once_the_run_is_to_stop(tokenizer: Any):
    stopped: list[bool] = []

    def handle(request: httpx.Request) -> httpx.Response:
        return answer_of(tokenizer, request)

    with mocked(tokenizer, handle, cancelled=lambda: bool(stopped)) as teacher:
        stopped.append(True)
        assert teacher.log_probabilities([EncodedAnswer((1, 2, 3), 1)]) is None


# ── Settings ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"update": {"loss": "clipped"}}, ("teacher",)),
        ({"reference": "base"}, ("reference",)),
        ({"rollout": {"temperature": 0.7}}, ("rollout", "temperature")),
        ({"kl": {"place": "loss", "kind": "full", "beta": 1.0}}, ("kl",)),
        ({"kl": {"place": "reward", "kind": "k3", "beta": 1.0}}, ("kl",)),
        ({"kl": {"place": "reward", "kind": "k1", "beta": 0.0}}, ("kl",)),
        ({"teacher": {"model": ""}}, ("teacher", "model")),
        ({"teacher": {"model": TEACHER, "seconds": 0}}, ("teacher", "seconds")),
        ({"teacher": {"model": TEACHER, "url": "http://anyone.example"}}, ("teacher",)),
    ],
)
def test_settings_that_mean_nothing_with_a_served_teacher_are_refused(
    changes: dict[str, Any], field: tuple[str, ...]
):
    values = {**OF_TOKENS, "rewards": REWARDS, "teacher": {"model": TEACHER}}
    assert settings_from_json("policy_gradient", values)
    with pytest.raises(ContractError) as refused:
        settings_from_json("policy_gradient", {**values, **changes})
    assert refused.value.problems[0][0][: len(field)] == field
