"""Our gunicorn worker: connections go to whoever has fewer."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from gunicorn.workers.gthread import ThreadWorker

from tests.webapp.running import PATIENCE, free_port
from webapp.operations.gunicorn import EvenThreads

APPLICATION = """
import os

def application(environ, start_response):
    start_response("200 OK", [("Content-Length", "8")])
    return [b"%8d" % os.getpid()]
"""


@pytest.mark.parametrize(
    ("connections", "milliseconds"), [(0, 0), (1, 0.5), (4, 2.0), (5, 2.5), (6, 2.5), (900, 2.5)]
)
def test_who_has_more_connections_lets_the_others_be_first_but_never_waits_long(
    connections: int, milliseconds: float, monkeypatch: pytest.MonkeyPatch
):
    told: list[object] = []
    monkeypatch.setattr("webapp.operations.gunicorn.time.sleep", lambda seconds: told.append(seconds * 1000))
    monkeypatch.setattr(ThreadWorker, "accept", lambda _self, *given: told.append(given))
    busy = EvenThreads.__new__(EvenThreads)
    busy.nr_conns = connections
    busy.accept("server", "listener")
    assert told == [pytest.approx(milliseconds), ("server", "listener")]


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Two processes behind one port that say which of them answers."""
    (tmp_path / "told.py").write_text(APPLICATION)
    number = free_port()
    worker = f"{EvenThreads.__module__}.{EvenThreads.__qualname__}"
    command = [sys.executable, "-m", "gunicorn", "told:application", "--bind", f"127.0.0.1:{number}"]
    command += ["--workers", "2", "--threads", "4", "--worker-class", worker, "--pythonpath", str(tmp_path)]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, stderr=log, env={**os.environ, "PYTHONPATH": os.getcwd()})
        try:
            deadline = time.monotonic() + PATIENCE
            while (tmp_path / "log").read_text().count("Booting worker") < 2:
                assert time.monotonic() < deadline, (tmp_path / "log").read_text()
                time.sleep(0.05)
            yield number
        finally:
            server.terminate()
            server.wait(timeout=PATIENCE)


def test_connections_are_kept_and_each_answers_from_its_process(port: int):
    """Which process takes which one is the machine's to say; none is refused, none changes its process."""
    open_ones = [HTTPConnection("127.0.0.1", port, timeout=PATIENCE) for _ in range(12)]

    def ask(connection: HTTPConnection) -> int:
        connection.request("GET", "/")
        return int(connection.getresponse().read())

    first = [ask(connection) for connection in open_ones]
    assert [ask(connection) for connection in open_ones] == first
    assert len(set(first)) <= 2
    for connection in open_ones:
        connection.close()
