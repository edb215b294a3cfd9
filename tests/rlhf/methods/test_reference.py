"""The policy that divergence is measured from: parent, base, or any checkpoint; the base always too."""

from pathlib import Path
from typing import Any

import pytest

from tests.rlhf.policy_gradient.sampled_runs import GRPO, make_sampled_run
from tests.rlhf.runs import make_run, status_of, train
from training.contract import ContractError, read_metrics
from training.contract.checkpoint import manifest_digest
from training.contract.methods.policy import PreferenceSettings
from training.contract.run import EXIT_FAILED, EXIT_FINISHED


def trained(folder: Path, base: Path, reference: str = "parent", **more: Any) -> Path:
    """A run of DPO to its end: 2 steps from a parent that took as many."""
    few: dict[str, Any] = {"max_steps": 2, "learning_rate": 1e-2}
    run = make_run(
        folder,
        base,
        method="preference",
        optimiser=few,
        settings={"reference": reference},
        cache="../c",
        **more,
    )
    assert train(run) == EXIT_FINISHED, status_of(run).message
    return run


@pytest.fixture
def parent(base: Path, tmp_path: Path) -> Path:
    """The checkpoint that the runs continue."""
    return trained(tmp_path / "parent", base) / "checkpoint"


def first_line(run: Path) -> dict[str, Any]:
    return read_metrics(run)[0]


def test_the_reference_of_a_continued_policy_is_the_parent_the_base_or_a_checkpoint(
    base: Path, tmp_path: Path, parent: Path
) -> None:
    held = {
        name: first_line(trained(tmp_path / name, base, reference, parent=str(parent)))
        for name, reference in {
            "own": "parent",
            "base": "base",
            # Relative to the run's folder.
            "named": "../parent/checkpoint",
        }.items()
    }
    # Before its first step the policy is its parent: it has not left that, and is as far from the base as it.
    assert held["own"]["log_ratio"] == pytest.approx(0, abs=1e-3)
    assert held["named"]["log_ratio"] == pytest.approx(0, abs=1e-3)
    drift = held["base"]["log_ratio"]
    assert abs(drift) > 0.01
    for line in held.values():
        assert line["log_ratio_base"] == pytest.approx(drift, abs=1e-3)


def test_a_policy_that_learns_from_samples_pays_for_its_distance_from_the_reference_that_is_set(
    base: Path, tmp_path: Path, parent: Path
) -> None:
    more: dict[str, Any] = {"parent": str(parent), "optimiser": {"max_steps": 1}}
    lines = {}
    for reference in ("parent", "base"):
        run = make_sampled_run(
            tmp_path / f"to-{reference}", base, GRPO, settings={"reference": reference}, **more
        )
        assert train(run) == EXIT_FINISHED
        lines[reference] = first_line(run)
    assert lines["parent"]["kl"] == 0
    assert lines["base"]["kl"] == lines["base"]["kl_base"] == lines["parent"]["kl_base"] != 0


def test_a_reference_that_is_another_checkpoint_than_the_one_meant_is_refused(
    base: Path, tmp_path: Path, parent: Path
) -> None:
    reference_settings = {"reference": str(parent), "reference_digest": "0" * 64}
    run = make_run(tmp_path / "run", base, method="preference", settings=reference_settings)
    assert train(run) == EXIT_FAILED
    assert "the reference's digest is not 000000000000" in status_of(run).message
    right = {**reference_settings, "reference_digest": manifest_digest(parent)}
    run = make_run(tmp_path / "right", base, method="preference", settings=right, optimiser={"max_steps": 1})
    assert train(run) == EXIT_FINISHED
    reward = make_run(tmp_path / "reward", base, optimiser={"max_steps": 1})
    assert train(reward) == EXIT_FINISHED
    run = make_run(
        tmp_path / "odd", base, method="preference", settings={"reference": str(reward / "checkpoint")}
    )
    assert train(run) == EXIT_FAILED
    assert "is a reward checkpoint; name a policy, or base" in status_of(run).message


def test_a_reference_without_a_name_and_a_digest_without_a_checkpoint_are_refused() -> None:
    with pytest.raises(ContractError, match=r"^reference: write parent, base, or"):
        PreferenceSettings(reference=" ")
    with pytest.raises(ContractError, match=r"^reference_digest: "):
        PreferenceSettings(reference="base", reference_digest="0" * 64)
