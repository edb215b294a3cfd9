"""From judgments to a policy: a reward model, a policy for it, and the web's readers of its run."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rlhf.policy_gradient.sampled_runs import SHORT, make_sampled_run
from tests.rlhf.runs import make_run, status_of, train
from training.contract import read_metrics
from training.contract.checkpoint import manifest_digest
from training.contract.run import (
    LOG_FILE,
    SAMPLES_FILE,
    WATCH_MARK,
    read_samples,
    read_watch_warnings,
)
from training.rlhf.policy_gradient.guard import Watch
from training.rlhf.policy_gradient.sweep import sweep

REINFORCE: dict[str, Any] = {"advantage": {"kind": "leave_one_out"}, "kl": {"place": "loss", "kind": "k3"}}


@pytest.fixture
def reward_model(base: Path, tmp_path: Path) -> Path:
    """Folder of a reward model that was trained on a few judgments."""
    run = make_run(tmp_path / "reward", base, optimiser={"max_steps": 2, "evaluate_every": 0})
    assert train(run) == 0
    return run / "checkpoint"


def people(checkpoint: Path) -> dict[str, Any]:
    return {
        "name": "people",
        "kind": "model",
        "checkpoint": "../reward/checkpoint",
        "checkpoint_digest": manifest_digest(checkpoint),
    }


def run_for_people(base: Path, tmp_path: Path, reward_model: Path, *, steps: int) -> Path:
    """A run whose answers earn by the reward model and by being short."""
    return make_sampled_run(
        tmp_path / "policy",
        base,
        REINFORCE,
        settings={"rewards": [people(reward_model), SHORT]},
        optimiser={"max_steps": steps},
    )


def test_a_policy_is_trained_for_a_reward_model_and_its_samples_are_read(
    base: Path, tmp_path: Path, reward_model: Path
) -> None:
    run = run_for_people(base, tmp_path, reward_model, steps=2)
    assert train(run) == 0, status_of(run).message
    rows = read_metrics(run)
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["reward"] == pytest.approx(row["reward/people"] + row["reward/short"], abs=1e-5)
    for step in (1, 2):
        samples = read_samples(run, step)
        assert samples
        for sample in samples:
            assert set(sample.parts) == {"people", "short"}
            assert sample.reward == pytest.approx(sum(sample.parts.values()), abs=1e-4)
            assert "".join(token.text for token in sample.tokens) == sample.text
            # An answer that was cut off loses 1.0 by default.
            earned = sample.reward - (1.0 if sample.finish_reason == "length" else 0.0)
            assert sum(token.reward or 0.0 for token in sample.tokens) == pytest.approx(earned, abs=1e-3)
            assert all(token.kl is not None for token in sample.tokens)
    # Before the first update the policy is its reference.
    assert all(
        token.kl == pytest.approx(0, abs=1e-4) for record in read_samples(run, 1) for token in record.tokens
    )
    assert len((run / SAMPLES_FILE).read_text().splitlines()) == len(
        read_samples(run, 1) + read_samples(run, 2)
    )


def test_a_reward_model_that_was_trained_anew_is_another_and_the_run_says_so(
    base: Path, tmp_path: Path, reward_model: Path
) -> None:
    run = make_sampled_run(
        tmp_path / "policy",
        base,
        REINFORCE,
        settings={"rewards": [people(reward_model) | {"checkpoint_digest": "d" * 64}]},
    )
    assert train(run) == 1
    assert (
        "the spec asks for dddddddddddd; name the reward model that the run was made for"
        in status_of(run).message
    )


def test_what_the_watch_warns_of_is_read_back_from_the_log(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Watch, "observe", lambda self, step, figures: [f"step {step}: odd"] if step == 2 else []
    )
    run = make_sampled_run(tmp_path / "policy", base, REINFORCE, optimiser={"max_steps": 2})
    assert train(run) == 0
    assert WATCH_MARK in (run / LOG_FILE).read_text()
    assert read_watch_warnings(run / LOG_FILE) == ["step 2: odd"]


def test_a_sweep_trains_each_set_of_weights_and_compares_held_out_rewards(
    base: Path, tmp_path: Path, reward_model: Path
) -> None:
    model = run_for_people(base, tmp_path, reward_model, steps=1)
    sets = [{"people": 1.0, "short": 0.0}, {"people": 0.0, "short": 1.0}]
    assert sweep(model, tmp_path / "sweep", sets, train=train) == 0
    report = json.loads((tmp_path / "sweep" / "pareto.json").read_text())
    assert [entry["name"] for entry in report["runs"]] == ["people-1_short-0", "people-0_short-1"]
    assert all(set(entry["held_out"]) == {"people", "short"} for entry in report["runs"])
    assert any(entry["on_front"] for entry in report["runs"])
