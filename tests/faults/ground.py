"""The ground of tests about faults: a home, its own servers, people with a ledger, a look at all of it."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests.faults.ledger import PROJECT, Ledger
from tests.faults.people import Person
from tests.faults.servers import Postgres, Redis
from tests.loop.recipe import TINY
from tests.webapp.running import PATIENCE, ROOT, free_port
from training.contract import read_metrics

# Names of what is only there while something is written.
_DRAFTS = ("**/.draft-*", "**/*.draft", "**/*.tmp", "**/.*.draft*", "**/tmp*")


class Ground:
    """A home with a PostgreSQL and a Redis; folders and processes are recognised by it."""

    def __init__(
        self, folder: Path, models: Path, *, host: str = "127.0.0.1", prefix: Sequence[str] = ()
    ) -> None:
        self.home = folder / "var"
        self.home.mkdir()
        (self.home / "models").symlink_to(models)
        self.servers_folder = Path(tempfile.mkdtemp(prefix="rondo-faults-"))
        # PostgreSQL's own account looks for its folder in here.
        self.servers_folder.chmod(0o711)
        self.postgres = Postgres(self.servers_folder, free_port(), host=host, prefix=prefix)
        self.redis = Redis(self.servers_folder, free_port(), host=host, prefix=prefix)
        self.ledger = Ledger(folder / "ledger.jsonl")
        self.sessions: list[str] = []
        self._enough = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def variables(self) -> dict[str, str]:
        """Rondo's part of the environment."""
        return {
            "DATABASE_URL": self.postgres.url,
            "RONDO_BROKER_URL": self.redis.url,
            "RONDO_HOME": str(self.home),
            "RONDO_STARTER_MODEL_NAME": TINY,
            "RONDO_SWEEP_SECONDS": "1",
            "RONDO_HEARTBEAT_SECONDS": "1",
            "RONDO_STALE_SECONDS": "5",
            "RONDO_WEB_PROCESSES": "2",
            "OMP_NUM_THREADS": "1",
        }

    @property
    def environment(self) -> dict[str, str]:
        """The whole of it, for a program that is started by itself."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RONDO_")}
        return {**inherited, **self.variables, "DJANGO_SETTINGS_MODULE": "webapp.settings"}

    def prepare(self, **scene: int) -> None:
        """Tables, a project, people, an open round."""
        self._run([sys.executable, "manage.py", "migrate", "--skip-checks", "--verbosity", "0"])
        self.sessions = json.loads(self._scene("prepare", scene))

    def people_come(self, places: Sequence[tuple[str, int]], *, think: float) -> None:
        """Every annotator begins to work at one of these addresses, in a thread of their own."""
        for seed, session in enumerate(self.sessions):
            person = Person(places, session, seed, ledger=self.ledger, project=PROJECT, think=think)
            self._threads.append(threading.Thread(target=person.stay, args=(self._enough,), daemon=True))
            self._threads[-1].start()

    def people_go(self) -> None:
        """Let people finish sending what they have under way, then leave."""
        self._enough.set()
        for thread in self._threads:
            thread.join(timeout=PATIENCE)
            assert not thread.is_alive(), f"an answer was never taken\n{self.logs()}"

    def processes(self, words: str = "") -> list[psutil.Process]:
        """This installation's, as the environment tells, the oldest first; with these words on the line."""
        matches = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                ours = process.environ().get("RONDO_HOME") == str(self.home) or str(self.home) in " ".join(
                    process.cmdline()
                )
                if ours and process.pid != os.getpid() and words in f"{' '.join(process.cmdline())} ":
                    matches.append(process)
        return sorted(matches, key=lambda match: match.create_time())

    # ── Looking ───────────────────────────────────────────────────────────────────────

    def look(self) -> dict[str, Any]:
        """Return the state of the database, as `tests.faults.scene` reads it."""
        state: dict[str, Any] = json.loads(self._scene("look"))
        return state

    def value(self, query: str) -> Any:
        """The first column of the first row that a query finds; None where there is none, or no server."""
        with suppress(psycopg.OperationalError), psycopg.connect(self.postgres.url) as connection:
            row = connection.execute(query).fetchone()
            return row[0] if row else None
        return None

    def wait(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
        """Until the condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what} does not come\n{self.logs()}"
            time.sleep(0.2)

    def has_more_than(self, acknowledged: int) -> bool:
        """Return whether more answers than these were acknowledged."""
        return self.ledger.acknowledged > acknowledged

    def steps_taken(self, method: str) -> int:
        """Return the number of steps that round 1's run of this method has recorded."""
        folder = self.home / "runs" / f"{PROJECT}-round-1-{method}"
        return len(read_metrics(folder)) if folder.is_dir() else 0

    def state_of_round(self, number: int) -> str:
        """As the database says; empty while it cannot be asked."""
        return str(self.value(f"SELECT state FROM training_round WHERE number = {number}") or "")

    def logs(self) -> str:
        """The last lines of every program, for whoever reads why a test failed."""
        files = [*(self.home / "log").glob("*.log"), *(self.home / "runs").glob("*/log.txt")]
        return "\n".join(f"── {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in files)

    def left_over(self) -> list[str]:
        """Names of drafts that nobody writes any more."""
        drafts = {path for pattern in _DRAFTS for path in self.home.glob(pattern)}
        return sorted(str(path.relative_to(self.home)) for path in drafts)

    def close(self) -> None:
        """Whatever still runs is ended, and the servers with it."""
        self._enough.set()
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for server in (self.postgres, self.redis):
            server.close()
        self.ledger.close()
        os.rmdir(self.servers_folder)

    def _scene(self, what: str, arguments: dict[str, int] | None = None) -> str:
        words = [sys.executable, "-m", "tests.faults.scene", what]
        return self._run([*words, json.dumps(arguments)] if arguments else words)

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout
