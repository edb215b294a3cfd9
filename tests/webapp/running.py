"""A real `manage.py up` on a folder and ports of its own, as tests see it: lines on a screen, processes."""

import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from django.apps import apps

from tests.migrated import give_database

ROOT = Path(__file__).resolve().parents[2]
# Long enough for the slowest machine; a test that passes never waits for it.
PATIENCE = 300.0


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RunningUp:
    """One `manage.py up`. Its output is read as it comes."""

    def __init__(
        self,
        home: Path,
        port: int,
        *arguments: str,
        command: Sequence[str] = (sys.executable, "manage.py", "up"),
        cwd: Path | str = ROOT,
        migrates: bool = False,
        **variables: str,
    ) -> None:
        """Start it on a migrated database, or where `migrates` on none."""
        self.home = home
        if not migrates and apps.ready and "DATABASE_URL" not in variables:
            give_database(home)
        self.address = f"http://127.0.0.1:{port}"
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RONDO_", "PYTEST_", "DJANGO_SETTINGS")) and name != "DATABASE_URL"
        }
        environment |= {"RONDO_HOME": str(home), "RONDO_PORT": str(port), "PYTHONUNBUFFERED": "1"}
        environment |= variables
        self.process = subprocess.Popen(
            [*command, *arguments],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first line, already printed or yet to come, in which `pattern` is found."""
        for line in self.lines:
            if match := re.search(pattern, line):
                return match
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                line_or_end = self._queue.get(timeout=1)
            except queue.Empty:
                continue
            if line_or_end is None:
                break
            self.lines.append(line_or_end)
            if match := re.search(pattern, line_or_end):
                return match
        raise AssertionError(f"No line matched {pattern!r} in:\n{self.output}")

    def family(self) -> list[psutil.Process]:
        """`up` and everything below it."""
        process = psutil.Process(self.process.pid)
        return [process, *process.children(recursive=True)]

    def find(self, words: str) -> psutil.Process:
        """The topmost process below `up` whose command line contains `words`."""
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                if words in " ".join(process.cmdline()):
                    return process
        raise AssertionError(f"No process of {words!r} runs.")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, read what is still said, return the exit status."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        status = self.process.wait(timeout=PATIENCE)
        # After SIGKILL its children still hold the pipe, so its end may not come.
        self._reader.join(timeout=5)
        while not self._queue.empty():
            if (line := self._queue.get()) is not None:
                self.lines.append(line)
        return status

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)


def still_alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended."""
    return [
        process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]
