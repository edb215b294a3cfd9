"""Run a real model server in a process of its own, for every test that talks to one."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.forked import Forked

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, kw_only=True)
class RunningServer:
    """A model server that listens."""

    url: str
    """Without a trailing slash; OpenAI's base URL is this with /v1."""
    key: str
    process: subprocess.Popen[bytes] | Forked
    log: Path

    def health(self) -> dict[str, Any]:
        """Return the response of GET /health, asked with the key."""
        request = urllib.request.Request(
            f"{self.url}/health", headers={"Authorization": f"Bearer {self.key}"}
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            status: dict[str, Any] = json.load(response)
        return status

    def wait_until_ready(self, seconds: float = 300) -> None:
        """Wait for the model; the server's log is shown when it does not come."""
        deadline = time.monotonic() + seconds
        while (health := self.health())["state"] != "ready":
            if health["state"] == "failed" or time.monotonic() > deadline:
                raise AssertionError(f"the model server is not ready: {health}\n{self.log.read_text()}")
            time.sleep(0.05)


@contextmanager
def running_model_server(
    models_folder: Path,
    checkpoints_folder: Path,
    *,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    wait: bool = True,
    module: str = "training.serving",
    forked: bool = True,
) -> Iterator[RunningServer]:
    """A model server on a free port, stopped at the end.

    models_folder: holds the base model in a folder named SmolLM2-135M-Instruct (or as
        `arguments` name it with --base).
    arguments: more of the command line. environment: more variables.
    wait: until the model is loaded; else only until the server answers.
    module: the router of several bases is `training.serving.router`.
    forked: from a process that has imported torch already; else by the command line, as the router always is.
    """
    key = secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as folder:
        status, log = Path(folder) / "status.json", Path(folder) / "log.txt"
        # fmt: off
        words = [
            "--models", str(models_folder), "--checkpoints", str(checkpoints_folder),
            "--host", "127.0.0.1", "--port", "0", "--status", str(status), *arguments,
        ]
        # fmt: on
        # The tests' own threads and the server's share two cores; one each is fastest for a tiny model.
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "RONDO_MODEL_SERVER_KEY": key}
        variables.update(environment or {})
        start = _forked if forked and module == "training.serving" else _started
        process: subprocess.Popen[bytes] | Forked = start(module, words, variables, log)
        try:
            url = _wait_for_address(process, status, log)
            server = RunningServer(url=url, key=key, process=process, log=log)
            if wait:
                server.wait_until_ready()
            yield server
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _forked(module: str, words: list[str], variables: Mapping[str, str], log: Path) -> Forked:
    # Only where a test forks one: importing it imports torch.
    from tests.forked import Forked

    log.touch()
    return Forked(module, words, variables, log)


def _started(
    module: str, words: list[str], variables: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    with log.open("wb") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", module, *words], cwd=ROOT, env=variables, stdout=stream, stderr=stream
        )


def _wait_for_address(process: subprocess.Popen[bytes] | Forked, status: Path, log: Path) -> str:
    deadline = time.monotonic() + 120
    while not status.is_file():
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"the model server does not answer\n{log.read_text()}")
        time.sleep(0.05)
    url: str = json.loads(status.read_text())["url"]
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=30).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the model server does not answer\n{log.read_text()}") from None
            time.sleep(0.05)
        else:
            return url
