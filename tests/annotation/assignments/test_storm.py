"""Many annotators against a real web server, with workers that die in the middle.

The minute-long run whose figures are in tests/benchmarks/labelling.md is this one at greater length.
"""

import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.benchmarks.labelling.server import serving
from tests.benchmarks.labelling.storm import storm
from tests.webapp.running import free_port

SECONDS = 8.0


def check(folder: Path, *, database_url: str, annotators: int, workers: int) -> None:
    with serving(
        folder,
        database_url=database_url,
        tasks=400,
        annotators=annotators,
        overlap=2,
        port=free_port(),
        workers=workers,
        threads=8,
    ) as served:
        verdict = storm(served, seconds=SECONDS, kills=True)
    assert verdict.faults() == {}
    assert verdict.acknowledged
    assert verdict.submitted_twice
    assert verdict.given_up


@pytest.mark.long
def test_sqlite_loses_and_doubles_nothing_when_all_web_processes_are_killed(tmp_path: Path):
    check(tmp_path, database_url="", annotators=8, workers=2)


@pytest.mark.long
@pytest.mark.postgres
def test_postgres_loses_and_doubles_nothing_when_all_web_processes_are_killed(tmp_path: Path):
    import psycopg

    named = os.environ["DATABASE_URL"]
    parts = urlsplit(named)
    storm_url = parts._replace(path="/rondo_storm").geturl()
    with psycopg.connect(parts._replace(path="/postgres").geturl(), autocommit=True) as server:
        server.execute("drop database if exists rondo_storm with (force)")
        server.execute("create database rondo_storm")
        try:
            check(tmp_path, database_url=storm_url, annotators=32, workers=3)
        finally:
            server.execute("drop database if exists rondo_storm with (force)")
