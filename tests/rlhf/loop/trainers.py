"""The trainer as processes of its own, forked from one that has imported torch already.

They are processes like any other: they have their own memory, get signals, are killed. What each is spared
is the 5 s of importing. That `python -m training.rlhf` and torchrun start the same is tested on its own.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

import training.rlhf.train  # noqa: F401 - what all of them share
from training.rlhf.__main__ import main

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.rlhf.loop.trainers"])


class Trainer:
    """One trainer, started at once. What it says goes to a file that `output` reads."""

    def __init__(self, folder: Path, *arguments: str, variables: Mapping[str, str] | None = None) -> None:
        # Beside the run: it goes with the test's folder.
        descriptor, name = tempfile.mkstemp(prefix="trainer-", suffix=".txt", dir=folder.parent)
        os.close(descriptor)
        self._said = Path(name)
        self._process = _CONTEXT.Process(
            target=_train, args=([str(folder), *arguments], name, dict(variables or {})), daemon=True
        )
        self._process.start()

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def output(self) -> str:
        """What it wrote until now to standard output and standard error."""
        return self._said.read_text()

    def poll(self) -> int | None:
        """The exit status, minus the signal where one killed it; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float = 300) -> int:
        """The exit status, once it has ended. Raises TimeoutError where it does not."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self.kill()
            raise TimeoutError(f"after {timeout} s the trainer still runs: {self.output}")
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        """As `kill` does."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Without a chance to save."""
        self._process.kill()
        self._process.join()


def finish_one(folder: Path, *arguments: str) -> tuple[int, str]:
    """One to its end: exit status and what it said."""
    trainer = Trainer(folder, *arguments)
    return trainer.wait(), trainer.output


def start_two(folder: Path) -> list[Trainer]:
    """Two trainers of one run, which find each other by the variables that torchrun sets."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        Trainer(folder, variables={**group, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)
    ]


def finish_two(folder: Path) -> None:
    """Both to their end, which must be a good one."""
    trainers = start_two(folder)
    for trainer in trainers:
        assert trainer.wait() == 0, "\n".join(one.output for one in trainers)


def _train(arguments: list[str], said: str, variables: dict[str, str]) -> None:
    with open(said, "ab", buffering=0) as file:
        for standard in (1, 2):
            os.dup2(file.fileno(), standard)
    os.environ.update(variables)
    torch.set_num_threads(1)
    sys.argv = ["python -m training.rlhf", *arguments]
    sys.exit(main())
