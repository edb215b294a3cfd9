"""Runs in an environment: success rises, a killed run ends where a whole one does, the command says both."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.rlhf.loop.test_interruptions import same_run
from tests.rlhf.runs import StopAfter, files_of, make_run, train
from training.contract import ContractError, read_manifest, read_metrics
from training.contract.methods import settings_from_json
from training.contract.methods.policy import PolicyGradientSettings
from training.contract.run import EXIT_FINISHED, EXIT_STOPPED
from training.contract.snapshot import Message, SnapshotPrompt
from training.rlhf.environments.__main__ import main, settings_of
from training.rlhf.environments.protocol import built_in
from training.rlhf.rewards.sandbox import isolation

pytestmark = pytest.mark.skipif(not isolation().system_calls, reason="needs a kernel that confines a process")

LETTERS = '''
class Environment:
    """Two turns, each paid by its share of vowels."""
    success = 0.6

    def reset(self, seed):
        self.turn = 0
        return [{"role": "user", "content": "go %d" % (seed % 3)}]

    def step(self, completion):
        self.turn += 1
        letters = completion.lower()
        share = sum(letters.count(vowel) for vowel in "aeiou") / max(8, len(letters))
        return [{"role": "user", "content": "more"}], share, self.turn == 2
'''
GROUP: dict[str, Any] = {"advantage": {"kind": "group_relative", "unit": "turn"}, "kl": {"place": "none"}}
PPO: dict[str, Any] = {
    "advantage": {"kind": "gae", "unit": "turn", "whiten": True},
    "kl": {"place": "reward", "kind": "k1", "beta": 0.01},
    "update": {"inner_epochs": 2, "minibatches": 2},
}


def environment_run(
    folder: Path, base: Path, method: dict[str, Any], *, optimiser: dict[str, Any], seed: int = 0
) -> Path:
    """A run in an environment that lies beside it."""
    world = folder.parent / "letters"
    world.mkdir(exist_ok=True)
    (world / "environment.py").write_text(LETTERS)
    message = Message(role="user", content="is not read")
    return make_run(
        folder,
        base,
        (),
        method="policy_gradient",
        prompts=[SnapshotPrompt(id="p", split="train", messages=(message,))],
        settings={
            "environment": {"name": "../letters", "turns": 3, "starts": 12},
            "rollout": {"samples": 4, "max_tokens": 8, "unfinished": "score"},
            "evaluation_prompts": 2,
            "max_tokens": 160,
            **method,
        },
        optimiser={"batch_size": 4, "micro_batch_tokens": 2048, "epochs": 100, **optimiser},
        seed=seed,
    )


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)]
)
def test_what_the_environment_pays_for_rises(base: Path, tmp_path: Path, seed: int) -> None:
    optimiser = {"max_steps": 30, "learning_rate": 1e-2, "schedule": "constant", "keep_best": False}
    run = environment_run(tmp_path / "run", base, GROUP, optimiser=optimiser, seed=seed)
    assert train(run) == EXIT_FINISHED
    lines = read_metrics(run)
    first = sum(line["reward"] for line in lines[:5]) / 5
    last = sum(line["reward"] for line in lines[-5:]) / 5
    # A mean over five steps has a standard error of about 0.02.
    assert last > first + 0.08
    assert all(line["turns"] == 2 and line["not_done"] == 0 for line in lines)
    # A rewarded turn is one of two: their sum is the reward.
    assert all(line["reward"] == line["reward/environment"] for line in lines)
    spec = read_manifest(run / "checkpoint").spec
    assert spec["settings"]["environment"] == {"name": "../letters", "turns": 3, "starts": 12}
    assert 0 <= lines[-1]["held_out_success"] <= 1


@pytest.mark.parametrize("method", [GROUP, PPO], ids=["group", "ppo"])
def test_a_stopped_run_ends_bit_for_bit_where_a_whole_one_does(
    base: Path, tmp_path: Path, method: dict[str, Any]
) -> None:
    optimiser = {"max_steps": 5, "save_every": 1, "evaluate_every": 2, "keep_best": False}
    run = environment_run(tmp_path / "run", base, method, optimiser=optimiser)
    assert train(run, StopAfter(run, 2)) == EXIT_STOPPED
    assert train(run) == EXIT_FINISHED
    whole = same_run(run, tmp_path / "whole")
    assert train(whole) == EXIT_FINISHED
    assert files_of(run / "checkpoint") == files_of(whole / "checkpoint")
    assert (run / "samples.jsonl").read_bytes() == (whole / "samples.jsonl").read_bytes()
    lines = read_metrics(run)
    # The first pass sees the policy that drew: its ratio is 1.
    assert lines[0]["sampler_gap"] < 1e-3


def test_an_environment_that_breaks_in_every_episode_ends_the_run_with_the_reason(
    base: Path, tmp_path: Path
) -> None:
    run = environment_run(tmp_path / "run", base, GROUP, optimiser={"max_steps": 3})
    broken = LETTERS.replace("letters = completion.lower()", "raise RuntimeError('out of stock')")
    (tmp_path / "letters" / "environment.py").write_text(broken)
    assert train(run) != EXIT_FINISHED
    assert "out of stock" in json.loads((run / "status.json").read_text())["message"]


@pytest.mark.parametrize(
    "more",
    [
        {"rewards": [{"name": "short", "kind": "length", "options": {"most": 2}}]},
        {"rollout": {"server": {}}},
        {"rollout": {"stop": ["x"]}},
        {"rollout": {"cuda_graphs": "auto"}},
        {"guard": {}},
        {"advantage": {"kind": "best", "unit": "turn"}},
        {"update": {"loss": "distil"}},
    ],
)
def test_settings_that_mean_nothing_in_an_environment_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ContractError):
        settings_from_json("policy_gradient", {"environment": {"name": "shop"}, **more})
    settings_from_json("policy_gradient", {"environment": {"name": "shop"}})
    with pytest.raises(ContractError):
        settings_from_json("policy_gradient", {})


def test_the_recipe_of_every_example_is_complete() -> None:
    for name in built_in():
        settings = settings_of(name, smoke=False)
        assert isinstance(settings, PolicyGradientSettings)
        assert settings.environment is not None
        assert settings.environment.name == name


def test_the_command_prints_success_before_and_after_and_writes_traces(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = tmp_path / "traces.jsonl"
    arguments = ["--model", str(base), "--smoke", "--episodes", "2", "--out", str(tmp_path / "out")]
    for _ in range(2):
        assert main(["service_bot", *arguments, "--traces", str(traces)]) == 0
        said = capsys.readouterr().out
        assert [line.split(":")[0] for line in said.splitlines()][:2] == ["success before", "success after"]
    assert len(traces.read_text().splitlines()) == 2
    assert (tmp_path / "out" / "service_bot-0" / "checkpoint").is_dir()
    shutil.rmtree(tmp_path / "out")
    assert main(["nowhere", *arguments]) == 1
    assert main([]) == 1
