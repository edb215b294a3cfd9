"""Ground of the launchers' tests: a round that trains on a scheduler of a few lines."""

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from pytest_django import Settings

from annotation.models import User
from tests.training.launchers.cluster_scene import do_step
from training.choices import StepKind
from training.models import Round, RoundStep, Run
from training.services.rounds.controls import start_round
from training.services.runs import clusters

SCHEDULER = Path(__file__).with_name("fake_scheduler.py")


@dataclass
class Scheduler:
    """The fake scheduler of a test; its switches are files."""

    folder: Path
    hit: list[psutil.Process] = field(default_factory=list)
    """Processes that a test has signalled; those that it stopped are ended with it."""

    def switch(self, name: str, *, on: bool = True) -> None:
        """Make it misbehave, or behave again."""
        (self.folder / name).touch() if on else (self.folder / name).unlink()

    def kill(self, number: int = 1, *, sign: signal.Signals = signal.SIGKILL) -> None:
        """End a job without a chance to save, as the loss of its node does."""
        pid = json.loads((self.folder / f"{number}.json").read_text())["pid"]
        # The trainer has a session of its own below the node's.
        for process in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(sign)
                self.hit.append(process)

    def log(self, number: int = 1) -> str:
        """Return what a job wrote."""
        return (self.folder / f"{number}.log").read_text()


@pytest.fixture
def scheduler(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, rondo_home: Path
) -> Iterator[Scheduler]:
    """A command template that speaks to the fake scheduler, in place of a cluster."""
    folder = tmp_path / "scheduler"
    folder.mkdir()
    command = shlex.join([sys.executable, str(SCHEDULER), str(folder)])
    settings.RONDO_LAUNCHER = ["local", "command"]
    settings.RONDO_COMMAND_SUBMIT = f"{command} submit {{name}} {{script}} {{nodes}} {{gpus}} {{queue}}"
    settings.RONDO_COMMAND_POLL = f"{command} poll {{handle}}"
    settings.RONDO_COMMAND_CANCEL = f"{command} cancel {{handle}}"
    settings.RONDO_COMMAND_LOGS = f"{command} logs {{handle}} {{lines}}"
    settings.RONDO_CLUSTER_HOME = str(rondo_home)
    settings.RONDO_LAUNCHER_POLL_SECONDS = 0.1
    monkeypatch.setattr(clusters, "_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(clusters, "_SETTLE_SECONDS", 2.0)
    monkeypatch.setattr("annotation.services.job_runs._POLL_SECONDS", 0.05)
    fake_scheduler = Scheduler(folder)
    yield fake_scheduler
    for process in fake_scheduler.hit:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    for path in folder.glob("*.json"):
        with suppress(ProcessLookupError):
            if pid := json.loads(path.read_text())["pid"]:
                os.killpg(pid, signal.SIGKILL)


@pytest.fixture
def compute() -> dict[str, Any]:
    """The part of the recipe that says where it trains."""
    return {"launcher": "command", "queue": "gold", "gpus": 0}


@pytest.fixture
def step(labelled: Round, carol: User, scheduler: Scheduler, compute: dict[str, Any]) -> RoundStep:
    """The step that trains a reward model, about to begin."""
    Round.objects.filter(pk=labelled.pk).update(recipe={**labelled.recipe, "compute": compute})
    labelled.refresh_from_db()
    start_round(round_=labelled, started_by=carol)
    assert do_step(labelled.steps.get(kind=StepKind.FREEZE_SNAPSHOT))
    return labelled.steps.get(kind=StepKind.TRAIN_REWARD_MODEL)


def run_of(step: RoundStep) -> Run:
    """The run of a step, as it is in the database now."""
    return RoundStep.objects.select_related("run").get(pk=step.pk).run
