"""Runs of policies from their folder to their checkpoint: resumed, reported, continued, on two processes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.rlhf.loop.test_interruptions import same_run
from tests.rlhf.loop.trainers import finish_two
from tests.rlhf.runs import (
    StopAfter,
    files_of,
    judgments,
    make_run,
    row,
    status_of,
    train,
)
from training.contract import read_manifest, read_metrics
from training.contract.checkpoint import manifest_digest
from training.contract.methods import Method
from training.contract.run import EXIT_FAILED, EXIT_FINISHED, EXIT_STOPPED

RUNS: dict[str, tuple[Method, dict[str, Any]]] = {
    "sft": ("sft", {"sources": ["preferred"]}),
    "kto": ("kto", {"sources": ["ranks"]}),
    "davidson-luce": ("preference", {"loss": "plackett_luce", "ties": "davidson", "sft_weight": 0.5}),
}


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest, base: Path, tmp_path: Path) -> Path:
    """A run of each method, with dropout, so that random numbers matter."""
    method, settings = RUNS[request.param]
    return make_run(tmp_path / "run", base, method=method, settings=settings, lora={"dropout": 0.1})


def test_a_stopped_run_goes_on_to_the_same_bytes_and_learns(run: Path, tmp_path: Path) -> None:
    assert train(run, StopAfter(run, 5)) == EXIT_STOPPED
    assert not (run / "checkpoint").exists()
    assert train(run) == EXIT_FINISHED
    whole = same_run(run, tmp_path / "whole")
    assert train(whole) == EXIT_FINISHED
    assert files_of(run / "checkpoint") == files_of(whole / "checkpoint")
    metrics = read_metrics(run)
    assert [line["loss"] for line in metrics] == [line["loss"] for line in read_metrics(whole)]
    assert metrics[-1]["held_out_loss"] < metrics[4]["held_out_loss"]


def test_a_run_tells_its_distance_from_the_reference_and_the_lengths(run: Path) -> None:
    assert train(run) == EXIT_FINISHED
    manifest = read_manifest(run / "checkpoint", verify=True)
    assert manifest.kind == "policy"
    named = {"log_ratio", "log_ratio_per_token", "answer_tokens", "log_loss", "loss", "judgments"}
    assert {f"held_out_{name}" for name in named} <= set(manifest.metrics)
    assert manifest.metrics["held_out_log_ratio"] != 0
    if manifest.spec["method"] != "sft":
        low, high = manifest.metrics["held_out_accuracy_low"], manifest.metrics["held_out_accuracy_high"]
        assert low <= manifest.metrics["held_out_accuracy"] <= high


def test_learned_log_odds_of_ties_are_saved_and_gone_on_with(base: Path, tmp_path: Path) -> None:
    settings = {"loss": "plackett_luce", "ties": "davidson"}
    more: dict[str, Any] = {"method": "preference", "settings": settings, "optimiser": {"max_steps": 4}}
    parent = make_run(tmp_path / "parent", base, **more)
    assert train(parent) == EXIT_FINISHED
    log_ties = load_file(parent / "checkpoint" / "heads.safetensors")["policy.log_tie"]
    # 4 of 12 judgments have a tie: far from the even odds that 0 would say.
    assert log_ties.shape == (11,)
    assert log_ties[0] < -0.5
    checkpoint = parent / "checkpoint"
    child = make_run(
        tmp_path / "child", base, parent=str(checkpoint), parent_digest=manifest_digest(checkpoint), **more
    )
    assert train(child) == EXIT_FINISHED
    # AdamW has moved it by less than the learning rate a step.
    assert read_metrics(child)[0]["log_tie_2"] == pytest.approx(log_ties[0].item(), abs=1e-6)
    # A run without ties can go on from it too.
    pairs = make_run(
        tmp_path / "pairs", base, method="preference", optimiser={"max_steps": 1}, parent=str(checkpoint)
    )
    assert train(pairs) == EXIT_FINISHED


def test_what_says_nothing_is_listed_and_a_snapshot_without_a_word_is_refused(
    base: Path, tmp_path: Path
) -> None:
    def thumb(name: str, scale: str, value: int) -> Any:
        rating = {"completion": f"{name}.0", "criterion": "good", "scale": scale, "value": value}
        return row(name, ["an answer"], [0], verdict="not_asked", ratings=[rating], prompt=f"Why {name}?")

    middling = thumb("middling", "five", 3)
    rows = [thumb("up", "thumbs", 1), thumb("down", "thumbs", 0), middling]
    folder = make_run(tmp_path / "run", base, rows, method="kto", optimiser={"max_steps": 1})
    assert train(folder) == EXIT_FINISHED
    dropped = read_manifest(folder / "checkpoint").dropped
    assert dropped == [
        {"judgment": "middling", "completion": "", "reason": "it says nothing of what is learned"}
    ]
    empty = make_run(tmp_path / "empty", base, [middling], method="kto")
    assert train(empty) == EXIT_FAILED
    assert "the snapshot calls no answer good or bad" in status_of(empty).message


def test_two_processes_share_one_point_of_reference(base: Path, tmp_path: Path) -> None:
    # 13 judgments in batches of 4: the last batch of an epoch is one judgment, and a process has none.
    rows = [*judgments(), row("odd", ["good answer", "bad"], [1, 2], prompt="Odd?")]
    more: dict[str, Any] = {"method": "kto", "settings": {"sources": ["ranks"]}, "optimiser": {"epochs": 2}}
    single, two = (
        make_run(tmp_path / "one", base, rows, **more),
        make_run(tmp_path / "two", base, rows, **more),
    )
    assert train(single) == EXIT_FINISHED
    finish_two(two)
    ours, theirs = read_metrics(single), read_metrics(two)
    assert any(line["reference_kl"] > 0 for line in ours)
    for left, right in zip(ours, theirs, strict=True):
        for name in ("loss", "reference_kl", "margin", "log_ratio"):
            assert left.get(name) == pytest.approx(right.get(name), abs=1e-4)
    assert torch.isfinite(torch.tensor([line["loss"] for line in ours])).all()
