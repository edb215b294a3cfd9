"""The programs that `manage.py up` keeps running: web server, two workers, model server."""

import hashlib
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.contrib.staticfiles.finders import get_finders

from training.services.base_models import STARTER_PACKAGE
from webapp.supervision.family import UpError


@dataclass(frozen=True)
class Program:
    """A long-running process.

    `title` is its name on screen; `seconds_to_stop` is its time to end before it is killed.
    """

    name: str
    title: str
    command: tuple[str, ...]
    seconds_to_stop: int


def web(host: str, port: int) -> Program:
    """Return the web server: a few processes for all cores, with threads for requests that wait."""
    return Program(
        name="web",
        title="web",
        command=(
            *_python("gunicorn"),
            "webapp.wsgi:application",
            *("--bind", f"[{host}]:{port}" if ":" in host else f"{host}:{port}"),
            *("--workers", str(settings.RONDO_WEB_PROCESSES), "--threads", "8"),
            # Imported once: processes are forked from what holds the application already.
            "--preload",
            # Half of the threads may be proxying completions (views/openai.py).
            # A page connected to the model server may wait longer than gunicorn's 30 s.
            *("--timeout", "120", "--graceful-timeout", "5"),
            # A connection stays with the process that accepted it, and one process may hold most of them:
            # gunicorn closes it after 2 s of silence, so that the next request reaches a free process.
            *("--keep-alive", "2"),
            *("--error-logfile", "-", "--logger-class", "webapp.operations.gunicorn.Lines"),
        ),
        seconds_to_stop=8,
    )


def worker() -> Program:
    """Return the worker of long jobs, with the scheduler as one of its threads."""
    return Program(
        name="worker",
        title="worker",
        command=_worker(settings.CELERY_TASK_DEFAULT_QUEUE, "--beat-thread", "--concurrency", "4"),
        seconds_to_stop=20,
    )


def short_worker() -> Program:
    """Return the worker of short jobs: imports, mail, webhooks, statistics, sweeps."""
    return Program(
        name="short-worker",
        title="worker for short jobs",
        command=_worker(settings.RONDO_SHORT_QUEUE, "--concurrency", "6"),
        seconds_to_stop=20,
    )


def _worker(queue: str, *options: str) -> tuple[str, ...]:
    return (
        *_python("celery"),
        *("--app", "webapp", "worker", "--queues", queue, *options, "--pool", "threads"),
        *("--loglevel", "INFO", "--without-gossip", "--without-mingle", "--without-heartbeat"),
    )


def model_server() -> Program:
    """Return the model server of all base models, which answers while it fetches the starter model."""
    return Program(
        name="model-server",
        title="model server",
        command=(
            *_python("training.serving.router"),
            *("--models", str(settings.RONDO_MODELS), "--checkpoints", str(settings.RONDO_CHECKPOINTS)),
            *("--base", settings.RONDO_STARTER_MODEL_NAME),
            *("--host", "127.0.0.1", "--port", str(settings.RONDO_MODEL_SERVER_PORT)),
        ),
        seconds_to_stop=10,
    )


def fetch_starter() -> subprocess.Popen[bytes] | None:
    """Begin to fetch the starter model; None where it is there, may come from the shared store, or is not
    what the model server serves.

    The model server would fetch it, too, once it runs: it waits for this process and goes on from there.
    """
    folder = Path(settings.RONDO_MODELS) / settings.RONDO_STARTER_MODEL_NAME
    if settings.RONDO_STARTER_MODEL_NAME != STARTER_PACKAGE or folder.is_dir() or settings.RONDO_STORE_URL:
        return None
    return subprocess.Popen(
        (*_python("training.rlhf.starter"), "--into", str(settings.RONDO_MODELS)),
        cwd=working_folder(),
        env=environment(),
        stdin=subprocess.DEVNULL,
        # What fails is tried again by the model server, which tells of it.
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Ctrl-C is for `up`, which ends this one.
        start_new_session=True,
    )


def end_fetch(fetch: subprocess.Popen[bytes]) -> None:
    """End a fetch that still runs, with the installer that it started. What it has is removed later."""
    if fetch.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(fetch.pid, signal.SIGTERM)
        fetch.wait()


def is_model_server_ours() -> bool:
    """Return True if `up` starts the model server itself."""
    return "RONDO_MODEL_SERVER_URL" not in os.environ


def environment() -> dict[str, str]:
    """Return the environment of all programs: that of `up`, the shared key, the static files."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "webapp.settings",
        "RONDO_HOME": str(settings.RONDO_HOME),
        "RONDO_MODEL_SERVER_KEY": settings.RONDO_MODEL_SERVER_KEY,
        "RONDO_STATIC_COLLECTED": "1",
        # Write log lines at once, not when a buffer is full.
        "PYTHONUNBUFFERED": "1",
    }


def _python(module: str) -> tuple[str, ...]:
    return (sys.executable, "-m", module)


def working_folder() -> Path:
    """Return the folder that holds Rondo's packages, in which every program starts."""
    return Path(settings.BASE_DIR)


# Collection of static files, repeated only after a change.


class NotCollectedError(UpError):
    """`collectstatic` failed; carries its last output."""


def collect_if_changed() -> tuple[int, bool]:
    """Collect the static files of all apps. Return their number and True if they had changed.

    Raise NotCollectedError with the output of `collectstatic`.
    """
    sources = _sources()
    fingerprint = _fingerprint(sources)
    stamp = Path(settings.STATIC_ROOT) / ".collected"
    if stamp.is_file() and stamp.read_text() == fingerprint:
        return len(sources), False
    # In a separate process: this one chose its storage when it read its settings.
    finished = subprocess.run(
        [sys.executable, "-m", "django", "collectstatic", "--no-input", "--clear", "--verbosity", "0"],
        cwd=working_folder(),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        lines = (finished.stderr or finished.stdout).strip().splitlines()
        raise NotCollectedError(lines[-1] if lines else f"exit status {finished.returncode}")
    stamp.write_text(fingerprint)
    return len(sources), True


def _sources() -> dict[str, str]:
    """Return every static file by its served name, with its path."""
    paths: dict[str, str] = {}
    for finder in get_finders():
        for name, storage in finder.list([]):
            paths.setdefault(name, storage.path(name))
    return paths


def _fingerprint(sources: dict[str, str]) -> str:
    digest = hashlib.sha256()
    for name, path in sorted(sources.items()):
        status = os.stat(path)
        digest.update(f"{name}\0{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()
