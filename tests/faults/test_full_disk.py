"""An installation whose disk runs full, and has room again: on a small file system of its own."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.tiny import tiny_model_folder
from tests.webapp.running import PATIENCE, RunningUp, free_port

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.tmpfs]

SIZE_MB = 420
"""`up` starts with 300 MB free where a model is there."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "rondo-small", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(file: Path) -> None:
    """Write until nothing more goes in."""
    with file.open("wb", buffering=0) as stream:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    stream.write(bytes(size))
            except OSError:
                continue


def status(up: RunningUp, path: str) -> int:
    """Return the status of a page; 0 where nothing answers."""
    try:
        return httpx.get(f"{up.address}{path}", timeout=20, trust_env=False).status_code
    except httpx.HTTPError:
        return 0


def wait_for_status(up: RunningUp, path: str, expected: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while (found := status(up, path)) != expected:
        assert up.process.poll() is None, up.output
        assert time.monotonic() < deadline, (found, up.output)
        time.sleep(0.5)


def test_an_installation_outlives_a_full_disk_and_works_again_once_there_is_room(home: Path):
    tiny_model_folder(home / "models" / "tiny")
    up = RunningUp(
        home,
        free_port(),
        "--no-model-server",
        "--no-first-project",
        RONDO_STARTER_MODEL_NAME="tiny",
        RONDO_LEAST_FREE_MB="10",
    )
    try:
        up.wait_for("Rondo is at")
        ballast = home / "ballast"
        fill(ballast)
        # Lines for logs that cannot be written: of requests, and of a worker that is told to end.
        for _ in range(40):
            status(up, "/no-such-page/")
        up.find("celery").kill()
        time.sleep(10)
        assert up.process.poll() is None, up.output
        assert status(up, "/health/live") == 200
        ballast.unlink()
        up.find("celery")
        wait_for_status(up, "/login/", 200)
        # The one process manager lived through it, or another took its place.
        up.find("supervisor.supervisord")
        wait_for_status(up, "/health/live", 200)
    finally:
        assert up.stop() == 0
