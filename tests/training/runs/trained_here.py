"""A trainer that trains in the process of the test, for tests of what comes before and after training."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from training.contract.run import RunStatus, read_status
from training.services.runs import launcher


def train_here(monkeypatch: pytest.MonkeyPatch, train: Callable[[Path], int]) -> None:
    """Let `train` write the output of a run and return its exit status, where a process would be started."""

    def run_trainer(
        folder: Path, *, watch: Callable[[RunStatus | None], bool], gpus: Sequence[int] | None = None
    ) -> launcher.TrainerExit:
        code = train(folder)
        status = read_status(folder)
        watch(status)
        return launcher.TrainerExit(code=code, status=status, output_tail="")

    monkeypatch.setattr(launcher, "run_trainer", run_trainer)
