"""A run from its folder to its checkpoint: what it reports on the way, learns and refuses."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.rlhf.loop.trainers import finish_one, finish_two
from tests.rlhf.runs import (
    ENVIRONMENT,
    ROOT,
    StopAfter,
    contradicted,
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


@pytest.fixture(scope="module", params=["reward", "preference"])
def finished(request: pytest.FixtureRequest, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of either method, trained to its end."""
    folder = make_run(tmp_path_factory.mktemp("finished") / "run", base, method=request.param)
    assert train(folder) == EXIT_FINISHED
    return folder


def test_every_step_is_told(finished: Path) -> None:
    metrics = read_metrics(finished)
    # 12 judgments in batches of 4 are 3 steps an epoch, 4 epochs.
    assert [line["step"] for line in metrics] == list(range(1, 13))
    assert [line["epoch"] for line in metrics][2::3] == [1.0, 2.0, 3.0, 4.0]
    named = ("loss", "learning_rate", "gradient_norm", "accuracy", "margin", "tokens", "seconds", "skipped")
    assert all(set(named) <= set(line) for line in metrics)
    assert "12 judgments to train on" in (finished / "log.txt").read_text()
    status = status_of(finished)
    assert (status.state, status.step, status.total_steps) == ("finished", 12, 12)


def test_the_learning_rate_rises_then_falls_along_a_cosine(finished: Path) -> None:
    rates = [line["learning_rate"] for line in read_metrics(finished)]
    # Two steps of warm-up to 0.001, then half a cosine over ten.
    assert rates[:3] == pytest.approx([5e-4, 1e-3, 1e-3])
    assert rates[7] == pytest.approx(5e-4)
    assert rates[11] == pytest.approx(1e-3 * 0.5 * (1 + math.cos(math.pi * 9 / 10)))


def test_held_out_figures_are_taken_where_due_and_stand_in_the_manifest(finished: Path) -> None:
    metrics = read_metrics(finished)
    evaluated = [line["step"] for line in metrics if "held_out_accuracy" in line]
    assert evaluated == [5, 10, 12]
    manifest = read_manifest(finished / "checkpoint", verify=True)
    assert manifest.metrics["held_out_judgments"] == 2
    chosen = metrics[manifest.steps - 1]
    figures = {key: value for key, value in chosen.items() if key.startswith("held_out_")}
    # A reward model's baselines join them after the last step.
    assert manifest.metrics.items() >= figures.items()


def test_the_checkpoint_is_the_evaluated_state_with_the_lowest_held_out_loss(
    base: Path, tmp_path: Path
) -> None:
    often = {"evaluate_every": 1, "max_steps": 8}
    best = make_run(tmp_path / "best", base, contradicted(), optimiser=often)
    last = make_run(tmp_path / "last", base, contradicted(), optimiser={**often, "keep_best": False})
    assert train(best) == train(last) == EXIT_FINISHED
    losses = [line["held_out_loss"] for line in read_metrics(best)]
    assert losses == [line["held_out_loss"] for line in read_metrics(last)]
    lowest = losses.index(min(losses)) + 1
    assert lowest < 8, "the last state is the best: this says nothing"
    manifest = read_manifest(best / "checkpoint", verify=True)
    assert (manifest.steps, manifest.metrics["held_out_loss"]) == (lowest, min(losses))
    assert read_manifest(last / "checkpoint", verify=True).steps == 8
    # The weights are those that the same run had when it was stopped after that step.
    stopped = make_run(tmp_path / "stopped", base, contradicted(), optimiser=often)
    assert train(stopped, StopAfter(stopped, lowest)) == EXIT_STOPPED
    state = load_file(stopped / "state" / f"step-{lowest}" / "state.safetensors")
    saved = load_file(best / "checkpoint" / "adapter_model.safetensors")
    assert all(torch.equal(state[f"adapter.{name}"], value) for name, value in saved.items())


def test_a_run_ends_early_when_nothing_gets_better(base: Path, tmp_path: Path) -> None:
    optimiser = {"evaluate_every": 1, "max_steps": 40, "epochs": 20, "patience": 2}
    folder = make_run(tmp_path / "run", base, contradicted(), optimiser=optimiser)
    assert train(folder) == EXIT_FINISHED
    losses = [line["held_out_loss"] for line in read_metrics(folder)]
    assert len(losses) < 40
    # The last two were no better than the best before them, and no two in a row before that.
    assert min(losses[-2:]) >= min(losses[:-2])
    for end in range(3, len(losses)):
        assert min(losses[end - 2 : end]) < min(losses[: end - 2], default=math.inf)
    assert status_of(folder).state == "finished"


def test_training_learns_what_the_judgments_say(finished: Path) -> None:
    metrics = read_metrics(finished)
    assert metrics[-1]["log_loss"] < metrics[0]["log_loss"] / 2
    assert metrics[-1]["accuracy"] == 1.0


def test_a_finished_run_started_again_changes_nothing(finished: Path) -> None:
    before = files_of(finished / "checkpoint")
    assert train(finished) == EXIT_FINISHED
    assert files_of(finished / "checkpoint") == before
    assert status_of(finished).state == "finished"


def test_a_run_that_diverges_skips_stops_and_keeps_its_last_good_state(base: Path, tmp_path: Path) -> None:
    folder = make_run(
        tmp_path / "run",
        base,
        method="preference",
        optimiser={"learning_rate": 1e30, "max_gradient_norm": 1e30, "warmup_steps": 0, "save_every": 1},
    )
    assert train(folder) == EXIT_FAILED
    skipped = [line for line in read_metrics(folder) if line["skipped"]]
    assert [line["step"] for line in skipped] == [2, 3, 4]
    assert all(line["loss"] is None or line["gradient_norm"] is None for line in skipped)
    status = status_of(folder)
    assert status.state == "failed"
    assert "not finite in 3 steps in a row" in status.message
    assert "after step 1" in status.message
    assert "Lower the learning rate" in status.message
    assert [path.name for path in (folder / "state").iterdir()] == ["step-1"]
    assert not (folder / "checkpoint").exists()
    assert "Step 2: loss or gradient is not finite; the step is skipped" in (folder / "log.txt").read_text()


def adapter_values(folder: Path) -> torch.Tensor:
    tensors = load_file(folder / "checkpoint" / "adapter_model.safetensors")
    return torch.cat([tensors[name].reshape(-1) for name in sorted(tensors)])


@pytest.mark.parametrize("method", ["reward", "preference"])
def test_two_processes_draw_the_loss_curve_of_one(base: Path, tmp_path: Path, method: Method) -> None:
    # 13 judgments in batches of 4: the last batch of an epoch is one judgment, and a process has none.
    rows = [*judgments(), row("odd", ["good answer", "bad"], [1, 2])]
    # Two epochs.
    single = make_run(tmp_path / "one", base, rows, method=method, optimiser={"max_steps": 8})
    two = make_run(tmp_path / "two", base, rows, method=method, optimiser={"max_steps": 8})
    assert train(single) == EXIT_FINISHED
    finish_two(two)
    ours, theirs = read_metrics(single), read_metrics(two)
    assert len(ours) == len(theirs) == 8
    for left, right in zip(ours, theirs, strict=True):
        assert left["loss"] == pytest.approx(right["loss"], abs=2e-5)
        assert left["tokens"] == right["tokens"]
    assert ours[0]["loss"] == pytest.approx(theirs[0]["loss"], abs=1e-6)
    assert ours[-1]["held_out_loss"] == pytest.approx(theirs[-1]["held_out_loss"], abs=2e-5)
    assert torch.allclose(adapter_values(single), adapter_values(two), atol=1e-3)


def test_micro_batches_change_speed_and_not_results(base: Path, tmp_path: Path) -> None:
    curves = []
    for size in (16, 4096):
        optimiser = {"batch_size": 8, "micro_batch_tokens": size, "max_steps": 4}
        folder = make_run(tmp_path / f"size-{size}", base, optimiser=optimiser)
        assert train(folder) == EXIT_FINISHED
        curves.append([line["loss"] for line in read_metrics(folder)])
    assert curves[0][0] == pytest.approx(curves[1][0], abs=1e-6)
    assert curves[0] == pytest.approx(curves[1], abs=1e-4)


def test_a_run_that_continues_a_checkpoint_names_it_and_begins_at_ln_2(base: Path, tmp_path: Path) -> None:
    parent = make_run(tmp_path / "parent", base, method="preference", optimiser={"max_steps": 3})
    assert train(parent) == EXIT_FINISHED
    checkpoint = parent / "checkpoint"
    child = make_run(
        tmp_path / "child",
        base,
        method="preference",
        optimiser={"max_steps": 2},
        parent=str(checkpoint),
        parent_digest=manifest_digest(checkpoint),
    )
    assert train(child) == EXIT_FINISHED
    assert read_metrics(child)[0]["loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert read_manifest(child / "checkpoint").parent_digest == manifest_digest(checkpoint)
    other = make_run(tmp_path / "other", base, method="preference", lora={"rank": 8}, parent=str(checkpoint))
    assert "the parent's adapter is" in failure_of(other)
    changed = make_run(
        tmp_path / "changed", base, method="preference", parent=str(checkpoint), parent_digest="f" * 64
    )
    assert "the parent's digest is" in failure_of(changed)


def failure_of(folder: Path) -> str:
    """The message of a run that must fail, which is no traceback."""
    assert train(folder) == EXIT_FAILED
    assert "Traceback" not in (folder / "log.txt").read_text()
    status = status_of(folder)
    assert status.state == "failed"
    return status.message


def test_what_is_wrong_with_a_run_is_said_in_its_status(base: Path, tmp_path: Path) -> None:
    changed = make_run(tmp_path / "changed", base, snapshot_digest="f" * 64)
    assert "the spec asks for ffffffffffff" in failure_of(changed)
    no_base = make_run(tmp_path / "no-base", tmp_path / "nowhere")
    assert "nowhere: no model is here" in failure_of(no_base)
    no_pair = make_run(tmp_path / "no-pair", base, [row("equal", ["a", "b"], [1, 1], verdict="equal")])
    assert "no training pair" in failure_of(no_pair)
    garbled = make_run(tmp_path / "garbled", base)
    values = json.loads((garbled / "spec.json").read_text())
    values["settings"]["optimiser"]["batch_size"] = 0
    (garbled / "spec.json").write_text(json.dumps(values))
    assert "batch_size: must be at least 1" in failure_of(garbled)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "spec.json: the file is missing" in failure_of(empty)


def test_a_failing_trainer_says_so_to_whoever_started_it(tmp_path: Path) -> None:
    code, output = finish_one(tmp_path)
    assert code == EXIT_FAILED
    assert "spec.json: the file is missing" in output
    assert "Traceback" not in output


_STARTED = """
import sys
from training.rlhf.__main__ import main

def loaded(*names):
    return [name for name in names if name in sys.modules]

sys.argv = ["python -m training.rlhf", sys.argv[1], "--status"]
main()
assert not loaded("torch", "transformers", "numpy"), "to tell of a run"
sys.argv.remove("--status")
assert main() == 0
assert loaded("torch", "transformers", "peft")
print(loaded("scipy.stats", "sklearn", "pandas", "pyarrow", "datasets", "torchvision", "django", "celery",
             "math_verify", "latex2sympy2_extended", "rouge_score"))
"""


def test_a_trainer_loads_only_what_its_run_needs(base: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", base, optimiser={"max_steps": 1})
    started = subprocess.run(
        [sys.executable, "-c", _STARTED, str(folder)],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert started.returncode == 0, started.stdout + started.stderr
    assert started.stdout.splitlines()[-1] == "[]"


def test_judgments_that_cannot_be_used_stand_in_the_manifest_and_the_log(base: Path, tmp_path: Path) -> None:
    rows = [*judgments(), row("empty", ["", "fine"], [1, 2]), row("tied", ["a", "b"], [1, 1])]
    folder = make_run(tmp_path / "run", base, rows, optimiser={"max_steps": 1})
    assert train(folder) == EXIT_FINISHED
    assert read_manifest(folder / "checkpoint").dropped == [
        {"judgment": "empty", "completion": "empty.0", "reason": "the answer is empty"},
        {"judgment": "empty", "completion": "", "reason": "no two usable answers differ in rank"},
        {"judgment": "tied", "completion": "", "reason": "no two usable answers differ in rank"},
    ]
    assert "Left out, 2 times: no two usable answers differ in rank" in (folder / "log.txt").read_text()


def test_a_state_of_another_spec_is_not_continued_but_other_micro_batches_are(
    base: Path, tmp_path: Path
) -> None:
    folder = make_run(tmp_path / "run", base)
    assert train(folder, StopAfter(folder, 2)) == EXIT_STOPPED
    make_run(folder, base, seed=1, optimiser={"epochs": 2})
    message = failure_of(folder)
    assert "the state was saved under another seed, settings" in message
    assert "delete the state" in message
    make_run(folder, base, optimiser={"micro_batch_tokens": 16, "save_every": 7})
    assert train(folder) == EXIT_FINISHED
    assert [line["step"] for line in read_metrics(folder)] == list(range(1, 13))


def test_a_checkpoint_of_another_spec_is_not_taken_for_this_runs(finished: Path, base: Path) -> None:
    spec = (finished / "spec.json").read_text()
    values = json.loads(spec)
    values["seed"] = 5
    (finished / "spec.json").write_text(json.dumps(values))
    try:
        assert "trained from another spec" in failure_of(finished)
    finally:
        (finished / "spec.json").write_text(spec)


def test_a_metrics_line_cut_off_by_a_kill_is_removed(base: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", base, optimiser={"epochs": 1})
    assert train(folder, StopAfter(folder, 1)) == EXIT_STOPPED
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 2, "lo')
    assert train(folder) == EXIT_FINISHED
    assert [line["step"] for line in read_metrics(folder)] == [1, 2, 3]
