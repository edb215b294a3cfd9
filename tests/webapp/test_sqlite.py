"""Several processes on one SQLite file take turns with their transactions."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

PRELUDE = """
import os, sys
import django
from django.conf import settings
settings.configure(DATABASES={"default": {"ENGINE": "webapp.database.sqlite", "NAME": sys.argv[1],
    "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20}}})
django.setup()
from django.db import connection, transaction
def run(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else []
def say(text):
    print(text, flush=True)
def hear():
    return sys.stdin.readline()
"""

HOLD = """
with transaction.atomic():
    run("insert into line values ('first')")
    say("inside")
    hear()
say("done")
"""

JOIN = """
say("asks")
with transaction.atomic():
    run("insert into line values ('second')")
say("done")
"""


class Process:
    """A program on the database that goes on when it reads a line."""

    def __init__(self, file: Path, code: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + code, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": ""},
        )

    def hear(self) -> str:
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "test.sqlite3"
    with closing(sqlite3.connect(path)) as database:
        database.execute("pragma journal_mode=wal")
        database.execute("create table line (who text)")
    return path


def written(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as database:
        return [who for (who,) in database.execute("select who from line order by rowid")]


def test_who_comes_second_writes_second(file: Path):
    first = Process(file, HOLD)
    assert first.hear() == "inside"
    second = Process(file, JOIN)
    assert second.hear() == "asks"
    first.go_on()
    assert first.hear() == "done"
    assert second.hear() == "done"
    assert written(file) == ["first", "second"]


def test_a_killed_process_holds_nobody_up_and_leaves_nothing_half_written(file: Path):
    first = Process(file, HOLD)
    assert first.hear() == "inside"
    second = Process(file, JOIN)
    assert second.hear() == "asks"
    first.process.send_signal(signal.SIGKILL)
    assert second.hear() == "done"
    assert written(file) == ["second"]


def test_a_rollback_ends_the_turn(file: Path):
    first = Process(
        file,
        """
try:
    with transaction.atomic():
        run("insert into line values ('never')")
        raise ValueError
except ValueError:
    say("rolled back")
hear()
with transaction.atomic():
    with transaction.atomic():
        run("insert into line values ('first')")
say("done")
""",
    )
    assert first.hear() == "rolled back"
    second = Process(file, JOIN)
    assert (second.hear(), second.hear()) == ("asks", "done")
    first.go_on()
    assert first.hear() == "done"
    assert written(file) == ["second", "first"]


def test_a_forked_child_does_not_end_its_parents_turn(file: Path):
    first = Process(
        file,
        """
with transaction.atomic():
    run("insert into line values ('first')")
    child = os.fork()
    if not child:
        connection._end_turn()
        os._exit(0)
    os.waitpid(child, 0)
    say("inside")
    hear()
say("done")
""",
    )
    assert first.hear() == "inside"
    second = Process(file, JOIN)
    assert second.hear() == "asks"
    first.go_on()
    assert (first.hear(), second.hear()) == ("done", "done")
    assert written(file) == ["first", "second"]
