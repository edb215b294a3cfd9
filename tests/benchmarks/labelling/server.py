"""A Rondo of its own for a load: a database, 10,000 pairs, people who are signed in, gunicorn."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[3]

_FILL = """
import sys, json
import django
django.setup()
from tests.benchmarks.labelling.fill import fill
json.dump(fill(**json.loads(sys.argv[1])), sys.stdout)
"""

_COMMAND = """
import sys, json
import django
django.setup()
from webapp.supervision.programs import web
json.dump(web(host="127.0.0.1", port=int(sys.argv[1])).command, sys.stdout)
"""
"""The command of the web server, which is read where Django is set up, as here it is not."""


@dataclass(slots=True)
class Served:
    """A server that answers, and who may ask."""

    port: int
    sessions: list[str]
    environment: dict[str, str]
    process: subprocess.Popen[bytes]
    seconds_to_fill: float
    command: list[str]

    def restart(self) -> None:
        """Start it again after it was killed."""
        self.process.wait(timeout=30)
        self.process = subprocess.Popen(self.command, env=self.environment, cwd=ROOT)
        _wait(self.port)

    def cpu_seconds(self) -> float:
        """The processor time that the web processes have used up to now."""
        web = psutil.Process(self.process.pid)
        spent = [process.cpu_times() for process in (web, *web.children(recursive=True))]
        return float(sum(times.user + times.system for times in spent))

    def python(self, code: str, *arguments: str) -> str:
        """Run a piece of Python on this server's database and return what it prints."""
        return _python(self.environment, code, *arguments)


@contextmanager
def serving(
    folder: Path,
    *,
    database_url: str = "",
    tasks: int = 10_000,
    annotators: int = 8,
    overlap: int = 1,
    has_questions: bool = False,
    port: int = 8190,
    workers: int | None = None,
    threads: int | None = None,
) -> Iterator[Served]:
    """Fill a new database and serve it by gunicorn, as `manage.py up` does by default."""
    environment = prepare(folder, database_url)
    began = time.monotonic()
    amounts = {"tasks": tasks, "annotators": annotators, "overlap": overlap, "has_questions": has_questions}
    sessions = json.loads(_python(environment, _FILL, json.dumps(amounts)))
    seconds = time.monotonic() - began
    command = _gunicorn(environment, port, workers, threads)
    process = subprocess.Popen(command, env=environment, cwd=ROOT)
    served = Served(port, sessions, environment, process, seconds, command)
    try:
        _wait(port)
        yield served
    finally:
        served.process.terminate()
        served.process.wait(timeout=30)


def _gunicorn(environment: dict[str, str], port: int, workers: int | None, threads: int | None) -> list[str]:
    command: list[str] = json.loads(_python(environment, _COMMAND, str(port)))
    for option, value in (("--workers", workers), ("--threads", threads)):
        if value is not None:
            command[command.index(option) + 1] = str(value)
    return command


def _python(environment: dict[str, str], code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def _wait(port: int) -> None:
    for _ in range(300):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/login/", timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"Nothing answers on port {port}.")


def prepare(folder: Path | str, database_url: str) -> dict[str, str]:
    """The environment of a Rondo in a folder, with its tables made and its static files collected."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("RONDO_", "DJANGO_"))},
        "RONDO_HOME": str(folder),
        "RONDO_STATIC_COLLECTED": "1",
        "DJANGO_SETTINGS_MODULE": "webapp.settings",
        "PYTHONPATH": str(ROOT),
    }
    if database_url:
        environment["DATABASE_URL"] = database_url
    else:
        environment.pop("DATABASE_URL", None)
    manage = [sys.executable, str(ROOT / "manage.py")]
    for command in (
        ["migrate", "--skip-checks", "--verbosity", "0"],
        ["collectstatic", "--skip-checks", "--noinput", "--verbosity", "0"],
    ):
        subprocess.run([*manage, *command], env=environment, cwd=ROOT, check=True)
    return environment


def flush(url: str) -> None:
    """Empty a PostgreSQL database, so that every load starts with the same tasks."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("drop schema public cascade")
        connection.execute("create schema public")
