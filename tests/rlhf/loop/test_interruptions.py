"""Killed, cancelled, left alone, started twice: with real processes and real signals."""

import dataclasses
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rlhf.loop.trainers import Trainer, finish_one
from tests.rlhf.runs import files_of, make_run, start, status_of, train
from training.contract import read_metrics
from training.contract.methods import Method
from training.contract.run import EXIT_FAILED, EXIT_FINISHED, EXIT_STOPPED, read_spec, write_spec


def steps_of(folder: Path) -> int:
    metrics = read_metrics(folder)
    return metrics[-1]["step"] if metrics else 0


def wait_until(true: Callable[[], bool], process: Trainer | subprocess.Popen[bytes]) -> None:
    """Wait for a state of the folder; a trainer that ends without it is the failure, not the clock."""
    while not true():
        if process.poll() is not None:
            output = process.output if isinstance(process, Trainer) else process.stdout.read().decode()
            assert true(), f"the trainer ended first: {output}"
        time.sleep(0.005)


def endless(folder: Path, base: Path) -> Path:
    """A run that does not end by itself while a test looks at it."""
    return make_run(folder, base, optimiser={"epochs": 100_000, "save_every": 100_000, "evaluate_every": 0})


@pytest.fixture(scope="module", params=["reward", pytest.param("preference", marks=pytest.mark.long)])
def uninterrupted(
    request: pytest.FixtureRequest, base: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run that was never interrupted, with dropout, so that random numbers matter."""
    folder = make_run(
        tmp_path_factory.mktemp("uninterrupted") / "run", base, method=request.param, lora={"dropout": 0.1}
    )
    code, output = finish_one(folder)
    assert code == EXIT_FINISHED, output
    return folder


def same_run(other: Path, folder: Path) -> Path:
    """The run of `other` in a new folder, not started."""
    spec = read_spec(other)
    write_spec(folder, dataclasses.replace(spec, snapshot=os.path.relpath(other / spec.snapshot, folder)))
    return folder


def test_a_run_killed_at_a_random_step_and_resumed_ends_byte_for_byte_like_one_never_killed(
    uninterrupted: Path, tmp_path: Path
) -> None:
    folder = same_run(uninterrupted, tmp_path / "killed")
    kill = random.randrange(1, 11)
    print(f"killed after step {kill}")
    trainer = Trainer(folder)
    wait_until(lambda: steps_of(folder) >= kill, trainer)
    trainer.kill()
    assert not (folder / "checkpoint").exists()
    code, output = finish_one(folder)
    assert code == EXIT_FINISHED, output
    if kill > 2:
        assert "Going on after step" in output
    assert files_of(folder / "checkpoint") == files_of(uninterrupted / "checkpoint")
    curves = [[line["loss"] for line in read_metrics(run)] for run in (folder, uninterrupted)]
    assert curves[0] == curves[1]


def test_a_cancelled_run_saves_stops_and_goes_on_to_the_same_bytes(
    uninterrupted: Path, tmp_path: Path
) -> None:
    folder = same_run(uninterrupted, tmp_path / "cancelled")
    (folder / "cancel").touch()
    assert train(folder) == EXIT_STOPPED
    assert status_of(folder).message == "cancelled"
    assert not (folder / "cancel").exists(), "the request was honoured and must not stop the next start"
    assert finish_one(folder)[0] == EXIT_FINISHED
    assert files_of(folder / "checkpoint") == files_of(uninterrupted / "checkpoint")


@pytest.mark.parametrize("way", ["cancel", "SIGTERM"])
def test_a_trainer_that_is_asked_to_stop_saves_where_it_is(base: Path, tmp_path: Path, way: str) -> None:
    folder = endless(tmp_path / "run", base)
    trainer = Trainer(folder)
    wait_until(lambda: steps_of(folder) >= 1, trainer)
    if way == "cancel":
        (folder / "cancel").touch()
    else:
        trainer.send_signal(signal.SIGTERM)
    assert trainer.wait() == EXIT_STOPPED
    assert_saved_where_it_stopped(folder)


def test_a_trainer_whose_standard_input_ends_saves_where_it_is(base: Path, tmp_path: Path) -> None:
    folder = endless(tmp_path / "run", base)
    process = start(folder, "--stop-with-parent", stdin=subprocess.PIPE)
    wait_until(lambda: steps_of(folder) >= 1, process)
    process.stdin.close()
    assert process.wait() == EXIT_STOPPED
    assert_saved_where_it_stopped(folder)


def assert_saved_where_it_stopped(folder: Path) -> None:
    """Its last step is its one saved state."""
    status = status_of(folder)
    assert status.state == "stopped"
    assert [path.name for path in (folder / "state").iterdir()] == [f"step-{status.step}"]


def test_two_trainers_never_share_a_folder(base: Path, tmp_path: Path) -> None:
    folder = endless(tmp_path / "run", base)
    first = Trainer(folder)
    wait_until(lambda: steps_of(folder) >= 1, first)
    assert train(folder) == EXIT_FAILED
    assert status_of(folder).state == "running", "the second trainer wrote over the first one's status"
    code, output = finish_one(folder, "--wait-for-lock", "0")
    assert code == EXIT_FAILED
    assert f"another trainer (process {first.pid}) works in this folder" in output
    (folder / "cancel").touch()
    assert first.wait() == EXIT_STOPPED


@pytest.mark.parametrize("method", ["reward", "preference"])
def test_a_save_torn_by_a_kill_is_not_taken_for_a_state(base: Path, tmp_path: Path, method: Method) -> None:
    whole = make_run(tmp_path / "whole", base, method=method, optimiser={"epochs": 1})
    assert train(whole) == EXIT_FINISHED
    torn = same_run(whole, tmp_path / "torn")
    (torn / "state" / ".partial").mkdir(parents=True)
    (torn / "state" / ".partial" / "state.safetensors").write_bytes(b"half")
    (torn / ".checkpoint.partial").mkdir()
    (torn / ".checkpoint.partial" / "manifest.json").write_text("{")
    assert train(torn) == EXIT_FINISHED
    assert files_of(torn / "checkpoint") == files_of(whole / "checkpoint")


def test_the_status_command_tells_a_killed_run_from_a_live_one(base: Path, tmp_path: Path) -> None:
    folder = endless(tmp_path / "run", base)
    assert finish_one(folder, "--status") == (EXIT_STOPPED, "waiting: no step yet\n")
    trainer = Trainer(folder)
    wait_until(lambda: steps_of(folder) >= 1, trainer)
    code, output = finish_one(folder, "--status")
    assert (code, output.split(":")[0]) == (EXIT_FINISHED, "running")
    trainer.kill()
    code, output = finish_one(folder, "--status")
    assert (code, output.split(":")[0]) == (EXIT_STOPPED, "interrupted")
    assert "It can be resumed" in output
