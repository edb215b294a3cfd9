"""The file for other libraries: a served reward model as their reward function."""

import importlib.util
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import torch

from tests.model_server import RunningServer
from tests.serving.conftest import Folders
from tests.serving.test_checkpoints import score
from training.serving import rondo_reward
from training.serving.rondo_reward import Reward, RewardError

CHAT = [{"role": "user", "content": "What is the sun?"}]
ANSWERS = ["A star.", "", "A lamp 🌞."]


@pytest.fixture
def named(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment names the served reward model."""
    monkeypatch.setenv("RONDO_REWARD_URL", f"{server.url}/v1")
    monkeypatch.setenv("RONDO_REWARD_MODEL", "reward")
    monkeypatch.setenv("RONDO_REWARD_KEY", server.key)
    rondo_reward.reward_from_environment.cache_clear()
    yield
    rondo_reward.reward_from_environment().close()
    rondo_reward.reward_from_environment.cache_clear()


@pytest.fixture
def expected(server: RunningServer) -> list[float]:
    """Scores of each answer by the server."""
    return list(score(server, completions=ANSWERS).json()["scores"])


class Stub:
    """A model server that scores a completion by its length, after some failures."""

    def __init__(self, *failures: httpx.Response | Exception) -> None:
        self.failures = list(failures)
        self.bodies: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            return failure
        body = json.loads(request.content)
        self.bodies.append(body)
        lengths = [len(completion) for completion in body["completions"]]
        answer: dict[str, Any] = {"scores": [float(length) for length in lengths]}
        if body.get("heads"):
            answer["segments"] = {"facts": [[{"start": 0, "end": n, "reward": n / 2}] for n in lengths]}
        return httpx.Response(200, json=answer)


def reward_of(stub: Stub, **choices: Any) -> Reward:
    return Reward("http://models", "tea", "key", transport=httpx.MockTransport(stub), **choices)


def test_scores_are_the_servers(server: RunningServer, expected: list[float]):
    with Reward(server.url, "reward", server.key) as reward:
        assert reward.score(CHAT, ANSWERS) == expected


def test_the_file_works_alone_beside_any_script(server: RunningServer, tmp_path: Path, expected: list[float]):
    copy = tmp_path / "copied_reward.py"
    copy.write_text(Path(rondo_reward.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    specification = importlib.util.spec_from_file_location("copied_reward", copy)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    with module.Reward(server.url, "reward", server.key) as reward:
        assert reward.score(CHAT, ANSWERS) == expected


def test_trl_gets_scores_of_texts_and_of_messages(named: None, expected: list[float]):
    texts = rondo_reward.trl_reward(prompts=["What is the sun?"] * 3, completions=ANSWERS, completion_ids=[])
    chats = rondo_reward.trl_reward(
        prompts=[CHAT] * 3, completions=[[{"role": "assistant", "content": answer}] for answer in ANSWERS]
    )
    assert texts == chats == expected


def test_openrlhf_gets_scores_of_what_stands_behind_the_prompt(named: None, expected: list[float]):
    prompts = ["What is the sun?", "<|user|>What is the sun?<|assistant|>", "What is the sun?"]
    labels = [None, json.dumps(CHAT), "a star"]
    queries = [prompt + answer for prompt, answer in zip(prompts, ANSWERS, strict=True)]
    result = rondo_reward.reward_func(queries, prompts, labels)
    assert result["rewards"].tolist() == pytest.approx(expected)
    assert result["scores"].tolist() == pytest.approx(expected)
    assert set(result) == {"rewards", "scores", "extra_logs"}


def test_verl_gets_scores_one_by_one_and_in_batches(named: None, expected: list[float]):
    infos: list[dict[str, Any]] = [{"messages": CHAT}, {"question": "What is the sun?"}, {"prompt": CHAT}]
    one_by_one = [
        rondo_reward.compute_score("tea", answer, "", info)
        for answer, info in zip(ANSWERS, infos, strict=True)
    ]
    batch = rondo_reward.compute_score(
        data_sources=["tea"] * 3, solution_strs=ANSWERS, ground_truths=[""] * 3, extra_infos=infos
    )
    assert one_by_one == pytest.approx(expected, abs=1e-5)
    assert batch == pytest.approx(expected, abs=1e-5)
    with pytest.raises(RewardError, match="what was answered is not known"):
        rondo_reward.compute_score("tea", "A star.", "", {"index": 3})


def test_nemo_rl_gets_an_environment_that_ends_after_one_response(
    named: None, expected: list[float], monkeypatch: pytest.MonkeyPatch
):
    """Its interface as https://docs.nvidia.com/nemo/rl/latest documents it."""

    class EnvironmentReturn(NamedTuple):
        observations: list[dict[str, str]]
        metadata: list[Any]
        next_stop_strings: list[Any]
        rewards: torch.Tensor
        terminateds: torch.Tensor
        answers: list[Any] | None

    interfaces = types.ModuleType("nemo_rl.environments.interfaces")
    interfaces.EnvironmentInterface = object  # type: ignore[attr-defined]
    interfaces.EnvironmentReturn = EnvironmentReturn  # type: ignore[attr-defined]
    for name in ("nemo_rl", "nemo_rl.environments"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "nemo_rl.environments.interfaces", interfaces)
    environment = rondo_reward.nemo_environment()()
    logs = [[*CHAT, {"role": "assistant", "content": answer}] for answer in ANSWERS]
    result = environment.step(logs, [{"row": 1}, None, None])
    assert result.rewards.tolist() == pytest.approx(expected)
    assert result.terminateds.tolist() == [1.0, 1.0, 1.0]
    assert result.metadata == [{"row": 1}, None, None]
    _, metrics = environment.global_post_process_and_metrics({"total_reward": torch.tensor([1.0, 2.0])})
    assert metrics == {"rondo_reward": 1.5}


@pytest.mark.long
def test_trl_trains_on_it(named: None, folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    datasets, trl = pytest.importorskip("datasets"), pytest.importorskip("trl")
    monkeypatch.setenv("WANDB_DISABLED", "true")
    seen: list[float] = []

    def counted(**arguments: Any) -> list[float]:
        seen.extend(scores := rondo_reward.trl_reward(**arguments))
        return scores

    trainer = trl.GRPOTrainer(
        model=str(folders.base),
        reward_funcs=counted,
        args=trl.GRPOConfig(
            output_dir=str(tmp_path),
            max_steps=2,
            logging_steps=1,
            num_generations=2,
            per_device_train_batch_size=2,
            max_completion_length=4,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
        ),
        train_dataset=datasets.Dataset.from_list([{"prompt": CHAT}] * 4),
    )
    assert trainer.train().global_step == 2
    assert len(seen) == 4
    logged = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    assert sum(logged) / len(logged) == pytest.approx(sum(seen) / 4, abs=1e-4)


def test_completions_of_one_chat_share_requests_of_at_most_64():
    stub = Stub()
    other = [{"role": "user", "content": "Tea?"}]
    pairs = [(CHAT if number % 2 else other, "x" * number) for number in range(140)]
    with reward_of(stub) as reward:
        assert reward.score_pairs(pairs) == [float(number) for number in range(140)]
    assert sorted(len(body["completions"]) for body in stub.bodies) == [6, 6, 64, 64]


def test_segments_are_told_by_head():
    with reward_of(Stub()) as reward:
        assert reward.segments(CHAT, ["ab", ""]) == {
            "facts": [[{"start": 0, "end": 2, "reward": 1.0}], [{"start": 0, "end": 0, "reward": 0.0}]]
        }


def test_context_is_sent_where_there_is_some():
    stub = Stub()
    passage = {"title": "Sun", "sentences": ["It is a star."]}
    with reward_of(stub) as reward:
        reward.score(CHAT, ["A star."], context=[passage])
        reward.score(CHAT, ["A star."])
    assert stub.bodies[0]["context"] == [passage]
    assert "context" not in stub.bodies[1]


def test_a_server_that_is_busy_or_away_is_asked_again(monkeypatch: pytest.MonkeyPatch):
    waited: list[float] = []
    monkeypatch.setattr("training.serving.rondo_reward.time.sleep", waited.append)
    busy = httpx.Response(429, headers={"Retry-After": "7"}, json={"error": {"message": "full"}})
    with reward_of(Stub(httpx.ConnectError("away"), busy, httpx.Response(503))) as reward:
        assert reward.score(CHAT, ["abc"]) == [3.0]
    assert waited == [0.5, 7.0, 2.0]


def test_patience_ends_with_what_the_server_said_last(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("training.serving.rondo_reward.time.sleep", lambda _: None)
    busy = httpx.Response(429, headers={"Retry-After": "7"}, json={"error": {"message": "queue full"}})
    with (
        reward_of(Stub(busy), patience=5.0) as reward,
        pytest.raises(RewardError, match=r"within 5 s \(429: queue full\)"),
    ):
        reward.score(CHAT, ["abc"])


def test_a_refusal_is_told_at_once():
    refused = httpx.Response(400, json={"error": {"message": "Model 'tea' has no score head."}})
    with reward_of(Stub(refused)) as reward, pytest.raises(RewardError, match="no score head"):
        reward.score(CHAT, ["abc"])


def test_variables_that_are_not_set_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RONDO_REWARD_KEY", raising=False)
    monkeypatch.delenv("RONDO_REWARD_MODEL", raising=False)
    monkeypatch.setenv("RONDO_REWARD_URL", "http://models")
    rondo_reward.reward_from_environment.cache_clear()
    with pytest.raises(RewardError, match="Set RONDO_REWARD_MODEL, RONDO_REWARD_KEY"):
        rondo_reward.trl_reward(prompts=["x"], completions=["y"])
