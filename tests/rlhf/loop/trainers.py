"""The trainer as processes of its own, forked: see `tests/forked.py`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from tests.forked import CONTEXT, Forked
from training.rlhf.runtime.processes import join_processes


class Trainer:
    """One trainer, started at once. What it says goes to a file that `output` reads."""

    def __init__(self, folder: Path, *arguments: str, variables: Mapping[str, str] | None = None) -> None:
        # Beside the run: it goes with the test's folder.
        descriptor, name = tempfile.mkstemp(prefix="trainer-", suffix=".txt", dir=folder.parent)
        os.close(descriptor)
        self._said = Path(name)
        self._process = Forked("training.rlhf", [str(folder), *arguments], variables or {}, self._said)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def output(self) -> str:
        """Return what the trainer has written so far to standard output and standard error."""
        return self._said.read_text()

    def poll(self) -> int | None:
        """The exit status, minus the signal where one killed it; None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float = 300) -> int:
        """The exit status, once it has ended. Raises TimeoutError where it does not."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"after {timeout} s the trainer still runs: {self.output}") from None

    def send_signal(self, number: signal.Signals) -> None:
        """As `kill` does."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Without a chance to save."""
        self._process.kill()
        self._process.wait()


def finish_one(folder: Path, *arguments: str) -> tuple[int, str]:
    """One to its end: exit status and what it said."""
    trainer = Trainer(folder, *arguments)
    return trainer.wait(), trainer.output


def start_two(folder: Path) -> list[Trainer]:
    """Two trainers of one run, which find each other by the variables that torchrun sets."""
    return start(folder, 2)


def start(folder: Path, count: int, *, per_node: int | None = None) -> list[Trainer]:
    """Trainers of one run; per_node: on each of several machines, which are all this one."""
    return [Trainer(folder, variables=variables) for variables in group(count, per_node=per_node)]


def finish_two(folder: Path) -> None:
    """Both to their end, which must be a good one."""
    finish(folder, 2)


def finish(folder: Path, count: int, *, per_node: int | None = None) -> None:
    """All to their end, which must be a good one."""
    trainers = start(folder, count, per_node=per_node)
    for trainer in trainers:
        assert trainer.wait() == 0, "\n".join(process.output for process in trainers)


def group(count: int, *, per_node: int | None = None) -> list[dict[str, str]]:
    """The variables by which processes find each other."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    local = per_node or count
    shared = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(local),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank % local)} for rank in range(count)]


def in_processes(
    function: Callable[..., Any], count: int, *arguments: Any, per_node: int | None = None
) -> list[Any]:
    """Call a function of a module in several processes that have joined; the results by rank.

    Its first argument is the process's `Processes`. Raises what one of them raised.
    """
    with tempfile.TemporaryDirectory() as scratch:
        processes = [
            CONTEXT.Process(target=_call, args=(function, variables, scratch, arguments), daemon=True)
            for variables in group(count, per_node=per_node)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(300)
        results = [
            torch.load(path, weights_only=False) if path.exists() else RuntimeError("it left no result")
            for path in (Path(scratch, str(rank)) for rank in range(count))
        ]
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def _call(function: Callable[..., Any], variables: dict[str, str], scratch: str, arguments: Any) -> None:
    os.environ.update(variables)
    torch.set_num_threads(1)
    try:
        with join_processes() as processes:
            result = function(processes, *arguments)
    except Exception as error:
        result = error
    torch.save(result, Path(scratch, variables["RANK"]))
