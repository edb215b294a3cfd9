"""A whole Rondo on PostgreSQL and Redis of its own, and what of it can be killed."""

import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil

from tests.faults.ground import Ground
from tests.faults.servers import Postgres, Redis
from tests.webapp.running import PATIENCE, RunningUp, free_port, still_alive

PROGRAMS = {
    "web": "webapp.wsgi:application",
    "worker": "--beat-thread",
    "short worker": "--queues short",
    "trainer": "-m training.rlhf ",
    "model server": "-m training.serving",
}
"""Words in the command line of each program."""
SERVERS = ("postgres", "redis")
VICTIMS = (*PROGRAMS, *SERVERS)


class Installation(Ground):
    """`manage.py up`, which starts its own programs again; we are who watches over the servers."""

    def __init__(self, folder: Path, models: Path) -> None:
        super().__init__(folder, models)
        self.port = free_port()
        self.up: RunningUp | None = None

    @property
    def place(self) -> tuple[str, int]:
        """Return the address and port of the pages."""
        return "127.0.0.1", self.port

    def start(self) -> None:
        """Start everything and wait until pages answer."""
        variables = {**self.variables, "RONDO_MODEL_SERVER_PORT": str(free_port())}
        variables.pop("RONDO_HOME")
        # Names of variables are upper case: none is the argument `migrates`.
        self.up = RunningUp(self.home, self.port, "--no-first-project", **variables)  # type: ignore[arg-type]
        self.up.wait_for("Rondo is at")

    def kill(self, victim: str, chance: random.Random) -> int | None:
        """SIGKILL one; a server is started again after a moment. Its process id; None where none runs now."""
        if victim in SERVERS:
            server: Postgres | Redis = self.postgres if victim == "postgres" else self.redis
            pid = server.pid
            server.kill()
            # As long as whoever watches over servers takes; some clients meet nobody meanwhile.
            time.sleep(chance.uniform(0.2, 2.0))
            server.start()
            return pid
        running = self.processes(PROGRAMS[victim])
        if not running:
            return None
        # Of the web server its master, or one of those that answer; everything else is one process.
        chosen = chance.choice(running)
        with suppress(psutil.NoSuchProcess):
            chosen.send_signal(signal.SIGKILL)
            return chosen.pid
        return None

    def stop(self) -> list[psutil.Process]:
        """Stop Rondo as Ctrl-C does; the processes that are still there afterwards."""
        if self.up is None or self.up.process.poll() is not None:
            return self.processes()
        family = self.up.family()
        self.up.stop(signal.SIGINT)
        deadline = time.monotonic() + PATIENCE
        # A trainer may still save its state: it ends by itself.
        while self.processes(PROGRAMS["trainer"]) and time.monotonic() < deadline:
            time.sleep(0.2)
        return [*still_alive(family), *self.processes()]

    def close(self) -> None:
        """Whatever still runs is ended."""
        self._enough.set()
        self.stop()
        super().close()
