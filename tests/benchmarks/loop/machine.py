"""A Rondo of its own in a temporary folder: database, files, model server, trainers, and its API.

Pages and API are the real application, called through WSGI; the jobs that a worker would do are done in this
process, by the same functions that the worker's tasks call. Trainers and model server are processes of their
own, forked from one that has torch loaded.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.benchmarks.loop import forge

STARTER = "writer"
_ADDRESS = "http://127.0.0.1:8000"
_NEVER_LIMITED = "1000000"


class Api:
    """One person's API client."""

    def __init__(self, transport: httpx.BaseTransport, secret: str) -> None:
        self._client = httpx.Client(
            base_url=f"{_ADDRESS}/api/v1/",
            transport=transport,
            headers={"Authorization": f"Bearer {secret}"},
            timeout=None,
        )

    def __call__(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Send a request and return the decoded response. Raises with the problem that the server names."""
        answer = self._client.request(method, path, json=body, headers=headers)
        if answer.status_code >= 400:
            raise SystemExit(f"{method} {path}: {answer.status_code} {answer.text[:1000]}")
        return answer.json() if answer.content else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A running Rondo."""

    home: Path
    transport: httpx.BaseTransport
    server_url: str
    server_key: str
    _clients: dict[str, Api] = field(default_factory=dict)

    def person(self, name: str, *, superuser: bool = False) -> Api:
        """Return the client of an account, which is made at first, with a token for all that it may do."""
        if name in self._clients:
            return self._clients[name]
        from annotation.choices import TokenScope
        from annotation.models import User
        from annotation.services.people.accounts import create_token

        user, _ = User.objects.get_or_create(
            username=name, defaults={"is_superuser": superuser, "is_staff": superuser}
        )
        made = create_token(user=user, name="loop", scopes=sorted(TokenScope.values), expires_at=None)
        return self._clients.setdefault(name, Api(self.transport, made.secret))


@contextlib.contextmanager
def running_machine(*, threads: int, model: Path | None, writer_steps: int) -> Iterator[Machine]:
    """Start a Rondo whose starter is `model`, or a writer trained for so many steps; stop it at the end.

    Django is configured once in a process: one machine at a time, and the first one's settings stay.
    """
    home = Path(tempfile.mkdtemp(prefix="rondo-loop-"))
    try:
        with forge.running_forge(home, threads=threads) as address:
            with ThreadPoolExecutor(1) as pool:
                laid_out = pool.submit(_lay_out_model, address, home, model, writer_steps)
                transport = _application(home, address)
                laid_out.result()
            with _model_server(home, address) as (url, key):
                from django.conf import settings

                settings.RONDO_MODEL_SERVER_URL, settings.RONDO_MODEL_SERVER_KEY = url, key
                yield Machine(home=home, transport=transport, server_url=url, server_key=key)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _lay_out_model(address: str, home: Path, model: Path | None, writer_steps: int) -> None:
    forge.wait_for(address)
    target = home / "models" / STARTER
    target.parent.mkdir(exist_ok=True)
    if model is not None:
        target.symlink_to(model.resolve())
        return
    arguments = [str(target), "--steps", str(writer_steps)]
    made = subprocess.run(
        [*forge.command(address, "tests.benchmarks.loop.writer"), *arguments], capture_output=True, text=True
    )
    if made.returncode:
        raise SystemExit(f"The writer could not be trained.\n{made.stderr}")


def _application(home: Path, address: str) -> httpx.BaseTransport:
    """Configure Django on a new SQLite database in this folder, and return the way to its API."""
    for name in [name for name in os.environ if name.startswith("RONDO_")]:
        del os.environ[name]
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "webapp.settings",
        "RONDO_HOME": str(home),
        "RONDO_STARTER_MODEL_NAME": STARTER,
        "RONDO_TOKEN_REQUESTS_PER_MINUTE": _NEVER_LIMITED,
        "RONDO_API_REQUESTS_PER_MINUTE": _NEVER_LIMITED,
        "RONDO_LOG_LEVEL": "WARNING",
    }
    os.environ.pop("DATABASE_URL", None)
    warnings.filterwarnings("ignore", message="No directory at")
    import django

    django.setup()
    from django.apps import apps
    from django.conf import settings
    from django.core.management import call_command
    from django.core.wsgi import get_wsgi_application

    settings.RONDO_TRAINER_COMMAND = forge.command(address, "training.rlhf")
    # Straight from the models: to replay the history of migrations takes ten seconds longer.
    settings.MIGRATION_MODULES = {app.label: None for app in apps.get_app_configs()}
    call_command("migrate", run_syncdb=True, verbosity=0)
    return httpx.WSGITransport(app=get_wsgi_application())


@contextlib.contextmanager
def _model_server(home: Path, address: str) -> Iterator[tuple[str, str]]:
    """Run the real model server on a free port; yield its URL and key once the model is loaded."""
    key, status, log = secrets.token_hex(16), home / "status.json", home / "server.log"
    command = [
        *(sys.executable, "-m", "tests.benchmarks.loop.serve", address, key),
        *("--models", str(home / "models"), "--checkpoints", str(home / "checkpoints")),
        *("--base", STARTER, "--device", "cpu", "--host", "127.0.0.1", "--port", "0"),
        *("--status", str(status)),
    ]
    with log.open("wb") as stream:
        process = subprocess.Popen(command, cwd=forge.ROOT, stdout=stream, stderr=stream)
    try:
        yield _ready(process, status, log, key), key
    finally:
        process.terminate()
        process.wait()


def _ready(process: subprocess.Popen[bytes], status: Path, log: Path, key: str) -> str:
    until = time.monotonic() + 300
    while time.monotonic() < until and process.poll() is None:
        time.sleep(0.05)
        if not status.is_file():
            continue
        url: str = json.loads(status.read_text())["url"]
        request = urllib.request.Request(f"{url}/health", headers={"Authorization": f"Bearer {key}"})
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=30) as answer:
            if json.load(answer)["state"] == "ready":
                return url
    raise SystemExit(f"The model server does not answer.\n{log.read_text()}")
