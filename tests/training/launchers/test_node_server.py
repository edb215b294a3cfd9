"""A rollout server is kept running beside a job, and nothing of it outlives the job."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

SERVER = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(sys.argv[1], "a") as starts:
    starts.write(f"{os.getpid()} {child.pid}\\n")
time.sleep(600)
"""
"""Says its process and that of its child, which no signal to the first one reaches."""


@pytest.fixture
def server_keeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    keeper = [sys.executable, "-m", "training.launchers.node.server", "--"]
    command = [sys.executable, "-c", SERVER, str(tmp_path / "starts")]
    process = subprocess.Popen([*keeper, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def starts(folder: Path) -> list[list[int]]:
    """The processes of each start."""
    path = folder / "starts"
    lines = path.read_text().splitlines() if path.exists() else []
    return [[int(pid) for pid in line.split()] for line in lines]


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def are_gone(pids: list[int]) -> bool:
    return not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)


def test_a_server_that_ends_is_started_again_without_what_it_left(
    server_keeper: subprocess.Popen[bytes], tmp_path: Path
):
    wait_until(lambda: len(starts(tmp_path)) == 1)
    first = starts(tmp_path)[0]
    psutil.Process(first[0]).kill()
    wait_until(lambda: len(starts(tmp_path)) == 2)
    assert are_gone(first)
    assert server_keeper.stdout is not None
    assert b"ended with -9; started again in 1 s" in server_keeper.stdout.readline()


def test_once_the_pipe_closes_the_server_and_its_children_end(
    server_keeper: subprocess.Popen[bytes], tmp_path: Path
):
    wait_until(lambda: len(starts(tmp_path)) == 1)
    assert server_keeper.stdin is not None
    server_keeper.stdin.close()
    assert server_keeper.wait(60) == 0
    assert are_gone(starts(tmp_path)[0])


def test_without_a_command_it_says_how_it_is_called():
    ended = subprocess.run(
        [sys.executable, "-m", "training.launchers.node.server"], capture_output=True, check=False
    )
    assert ended.returncode == 2
    assert b"training.launchers.node.server -- COMMAND" in ended.stderr
