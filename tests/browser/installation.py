"""An installation of its own for tests that start, kill and look into a whole Rondo."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

from tests.webapp.running import PATIENCE, ROOT, RunningUp, free_port, still_alive


class Rondo:
    """An installation that can be started, stopped and looked into."""

    def __init__(self, home: Path, base: Path) -> None:
        self.home = home
        self.base = base
        self.up: RunningUp | None = None

    def start(self) -> RunningUp:
        port = str(free_port())
        self.up = RunningUp(
            self.home,
            free_port(),
            migrates=True,
            RONDO_STARTER_MODEL=str(self.base),
            RONDO_MODEL_SERVER_PORT=port,
            RONDO_SWEEP_SECONDS="1",
            RONDO_HEARTBEAT_SECONDS="1",
            RONDO_STALE_SECONDS="6",
            OMP_NUM_THREADS="1",
        )
        self.up.wait_for("Rondo is at")
        return self.up

    def stop(self) -> None:
        if self.up and self.up.process.poll() is None:
            family = self.up.family()
            assert self.up.stop(signal.SIGINT) == 0
            assert still_alive(family) == []

    def count(self, table: str) -> int:
        with sqlite3.connect(f"file:{self.home / 'rondo.sqlite3'}?mode=ro", uri=True) as database:
            (number,) = database.execute(f"SELECT count(*) FROM {table}").fetchone()
        return int(number)

    def value(self, query: str) -> object:
        """The first column of the first row that a query finds; None where it finds none."""
        with sqlite3.connect(f"file:{self.home / 'rondo.sqlite3'}?mode=ro", uri=True) as database:
            row = database.execute(query).fetchone()
        return row[0] if row else None

    def wait_for_value(self, query: str, among: Collection[object]) -> object:
        """Ask the database until its answer is one of these."""
        deadline = time.monotonic() + PATIENCE
        while (value := self.value(query)) not in among:
            assert time.monotonic() < deadline, f"{query} stays {value!r}\n{self.up and self.up.output}"
            time.sleep(0.1)
        return value

    def run(self, code: str) -> None:
        """Run Python in this installation, with Django set up."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RONDO_")}
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        environment |= {"RONDO_HOME": str(self.home)}
        command = [sys.executable, "manage.py", "shell", "-c", code]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=PATIENCE)

    def resumed_at(self, method: str) -> int:
        """The step from which the run of this method went on, as its log says; waits until it does."""
        log = self.home / "runs" / f"first-project-round-1-{method}" / "log.txt"
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if steps := re.findall(r"Going on after step (\d+)", log.read_text()):
                return int(steps[-1])
            time.sleep(0.2)
        raise AssertionError(f"it began anew or not at all:\n{log.read_text()}")
