"""The launcher with several trainers of one run: by torchrun, killed, cancelled."""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from django.conf import settings

from tests.rlhf.runs import judgments, make_run
from tests.tiny import tiny_model_folder
from training.contract import read_metrics
from training.contract.run import EXIT_FAILED, EXIT_STOPPED, RunStatus, read_status
from training.services.runs import launcher
from training.services.runs.launcher import run_trainer, trainer_command

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A run of two processes that has not been started; long where a test looks at it on its way."""
    epochs = 12 if request.node.get_closest_marker("long") else 1
    return make_run(
        tmp_path / "run",
        tiny_model_folder(tmp_path / "tiny"),
        judgments(),
        optimiser={"epochs": epochs, "keep_best": False, "save_every": 2},
        processes=2,
    )


def children(word: str) -> list[psutil.Process]:
    """Processes below this one with this word in their command line, by their rank."""
    ranked: list[tuple[str, psutil.Process]] = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            command = process.cmdline()
            if word in command and "torch.distributed.run" not in command:
                ranked.append((process.environ().get("RANK", ""), process))
    return [child for _, child in sorted(ranked, key=lambda pair: pair[0])]


def trainers() -> list[psutil.Process]:
    """Those that this test has started, torchrun aside."""
    return children("training.rlhf")


def at_step(step: int, do: Callable[[], None]) -> Callable[[RunStatus | None], bool]:
    """A watch that does something once, at this step."""
    done: list[int] = []

    def watch(status: RunStatus | None) -> bool:
        if not done and status is not None and status.step >= step:
            done.append(status.step)
            do()
        return False

    return watch


def test_two_processes_train_a_run_to_its_end(folder: Path):
    seen: set[int] = set()

    def look(status: RunStatus | None) -> bool:
        seen.update(process.pid for process in trainers())
        return False

    ending = run_trainer(folder, watch=look)
    assert ending.finished, ending.output_tail
    assert len(seen) == 2
    assert (folder / "checkpoint" / "manifest.json").is_file()
    assert trainers() == []


@pytest.mark.long
def test_a_run_whose_process_was_killed_is_started_again_and_goes_on(folder: Path):
    kill = at_step(5, lambda: trainers()[1].send_signal(signal.SIGKILL))
    ending = run_trainer(folder, watch=kill)
    assert ending.finished, ending.output_tail
    log = (folder / "log.txt").read_text()
    assert "another process of the run has ended" in log or "Stopped (" in log
    assert "Going on after step" in log
    steps = [line["step"] for line in read_metrics(folder)]
    assert steps == list(range(1, len(steps) + 1))


@pytest.mark.long
def test_a_cancel_reaches_both(folder: Path):
    ending = run_trainer(folder, watch=lambda status: bool(status and status.step >= 3))
    assert ending.code == EXIT_STOPPED
    assert read_status(folder).state == "stopped"
    assert trainers() == []


def test_what_is_wrong_is_said_as_of_one_process(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """For messages of real trainers see tests/rlhf/loop/test_distributed.py."""
    fail = (
        "import os, pathlib, sys, time; from training.contract.run import RunStatus, write_status\n"
        "now = {'updated_at': time.time(), 'step': 0, 'total_steps': 1}\n"
        "status = RunStatus(state='failed', message='tiny is missing', **now)\n"
        "if os.environ['RANK'] != '0': time.sleep(300)\n"  # Until torchrun ends it.
        "write_status(pathlib.Path(sys.argv[1]), status)\n"
        "sys.exit(1)"
    )
    monkeypatch.setattr(settings, "RONDO_TRAINER_COMMAND", (sys.executable, "-c", fail))
    ending = run_trainer(folder, watch=lambda status: False)
    assert ending.code == EXIT_FAILED
    assert ending.message == "tiny is missing"


@pytest.mark.long
def test_processes_that_hang_are_ended_with_torchrun(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(launcher, "_LEAVE_AFTER_CANCEL_SECONDS", 1.0)
    hang = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
    monkeypatch.setattr(settings, "RONDO_TRAINER_COMMAND", (sys.executable, "-c", hang))
    began = time.monotonic()
    run_trainer(folder, watch=lambda status: len(children(hang)) == 2)
    assert time.monotonic() - began < 60
    assert children(hang) == []


def test_one_process_is_started_without_torchrun():
    assert trainer_command(1) == list(settings.RONDO_TRAINER_COMMAND)
    assert "torch.distributed.run" in trainer_command(2)
    assert os.path.basename(sys.executable) in os.path.basename(trainer_command(2)[0])
