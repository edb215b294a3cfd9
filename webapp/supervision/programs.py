"""The programs that `manage.py up` keeps running: web server, worker, model server."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings


@dataclass(frozen=True)
class Program:
    """One long-running process.

    `title` is its name on screen; `seconds_to_stop` is how long it may take to end by itself
    before it is killed.
    """

    name: str
    title: str
    command: tuple[str, ...]
    seconds_to_stop: int


def web(host: str, port: int) -> Program:
    """The web server: a few processes for all cores, with threads for requests that wait."""
    return Program(
        name="web",
        title="web",
        command=(
            *_python("gunicorn"),
            "webapp.wsgi:application",
            *("--bind", f"[{host}]:{port}" if ":" in host else f"{host}:{port}"),
            *("--worker-class", "webapp.operations.gunicorn.EvenThreads"),
            *("--workers", str(settings.RONDO_WEB_PROCESSES), "--threads", "8"),
            # Half of the threads may be passing on answers of models (views/openai.py).
            # A page that holds a connection to the model server may wait longer than gunicorn's 30 s.
            *("--timeout", "120", "--graceful-timeout", "5"),
            # A connection stays with the process that took it, and one may have taken most of them: gunicorn
            # closes it after 2 s of silence, so that each answer of a thinking person finds who is free.
            *("--keep-alive", "2"),
            *("--error-logfile", "-", "--logger-class", "webapp.operations.gunicorn.Lines"),
        ),
        seconds_to_stop=8,
    )


def worker() -> Program:
    """The worker, with the scheduler as one of its threads."""
    return Program(
        name="worker",
        title="worker",
        command=(
            *_python("celery"),
            *("--app", "webapp", "worker", "--beat-thread"),
            *("--pool", "threads", "--concurrency", "4"),
            *("--loglevel", "INFO", "--without-gossip", "--without-mingle", "--without-heartbeat"),
        ),
        seconds_to_stop=20,
    )


def model_server() -> Program:
    """The model server, which fetches the starter model by itself while it already answers."""
    return Program(
        name="model-server",
        title="model server",
        command=(
            *_python("training.serving"),
            *("--models", str(settings.RONDO_MODELS), "--checkpoints", str(settings.RONDO_CHECKPOINTS)),
            *("--base", settings.RONDO_STARTER_MODEL_NAME),
            *("--host", "127.0.0.1", "--port", str(settings.RONDO_MODEL_SERVER_PORT)),
        ),
        seconds_to_stop=10,
    )


def is_model_server_ours() -> bool:
    """Whether the model server is the one that `up` starts, and not one that somebody else runs."""
    return "RONDO_MODEL_SERVER_URL" not in os.environ


def environment() -> dict[str, str]:
    """The environment of all programs: that of `up`, the shared key, and where static files are."""
    return {
        **os.environ,
        "RONDO_HOME": str(settings.RONDO_HOME),
        "RONDO_MODEL_SERVER_KEY": settings.RONDO_MODEL_SERVER_KEY,
        "RONDO_STATIC_COLLECTED": "1",
        # A line that a program writes is in its log at once, not when a buffer is full.
        "PYTHONUNBUFFERED": "1",
    }


def _python(module: str) -> tuple[str, ...]:
    return (sys.executable, "-m", module)


def working_folder() -> Path:
    """Where every program starts: the folder of `manage.py`."""
    return Path(settings.BASE_DIR)
