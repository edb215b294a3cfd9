"""Trainers, model servers and inspections as processes, forked from one that has imported torch already.

They are processes like any other: they have their own memory, get signals, are killed. What each is spared is
the seconds of importing. That `python -m training.rlhf`, torchrun and `python -m training.serving` start the
same is tested on its own.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

import training.rlhf.__main__
import training.rlhf.model.inspection
import training.rlhf.train
import training.serving.__main__  # noqa: F401 - what all of them share

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.forked"])


class Forked:
    """`python -m MODULE ARGUMENTS`, started at once; the module has a `main`. Its output goes to a file.

    errors: the file for what it writes to stderr; without it, that of the output.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        output: Path,
        errors: Path | None = None,
    ) -> None:
        files = (str(output), str(errors or output))
        self._process = CONTEXT.Process(
            target=_run, args=(module, list(arguments), dict(variables), files), daemon=True
        )
        self._process.start()

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, minus the signal where one killed it; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, once it has ended. Raises `subprocess.TimeoutExpired`."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self._process.name), timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """As `kill` does; nothing where it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Without a chance to save."""
        self.send_signal(signal.SIGKILL)


def _run(module: str, arguments: list[str], variables: dict[str, str], files: tuple[str, str]) -> None:
    for standard, path in enumerate(files, start=1):
        with open(path, "ab", buffering=0) as file:
            os.dup2(file.fileno(), standard)
    os.environ.update(variables)
    torch.set_num_threads(1)
    sys.argv = [f"python -m {module}", *arguments]
    imported = importlib.import_module(module)
    # A package is started by its `__main__`.
    if hasattr(imported, "__path__"):
        imported = importlib.import_module(f"{module}.__main__")
    sys.exit(imported.main())
