"""Data of 0.1 in the release of today.

`upgrade/from_0_1.sql` was written by the code of 0.1 (commit 8ec9deb: two annotators, six prompts, eight
annotations with spans) and brought by commit 608ee0f to the state in which today's first migrations begin.
"""

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

from tests.architecture.test_house import ROOT

FIXTURE = Path(__file__).parent / "upgrade" / "from_0_1.sql"
pytestmark = pytest.mark.slow
_LOOK = """
from django.test import Client
from annotation.models import Judgment, Project, Prompt, SpanFlag, User
project = Project.objects.get(slug="tea")
print(Prompt.objects.filter(project=project).count(), Judgment.objects.current().count())
print(sorted({(s.quote, s.completion.text[s.start:s.end], s.category.key) for s in SpanFlag.objects.all()}))
print(sorted(Judgment.objects.values_list("annotator__username", "active_seconds")))
print(User.objects.get(username="ada").check_password("a kettle of four words"))
client = Client(SERVER_NAME="localhost")
client.force_login(User.objects.create_superuser("root"))
for page in ("", "data/comparisons/", "statistics/", "annotators/"):
    print(page, client.get(f"/projects/tea/{page}").status_code)
"""


def manage(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    ours = ("RONDO_", "DJANGO_", "DATABASE_URL")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=ROOT,
        env={**variables, "RONDO_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )


def old_home(folder: Path) -> Path:
    with sqlite3.connect(folder / "rondo.sqlite3") as connection:
        connection.executescript(FIXTURE.read_text(encoding="utf-8"))
    connection.close()
    return folder


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of 0.1, migrated."""
    home = old_home(tmp_path_factory.mktemp("upgraded"))
    migrated = manage(home, "migrate", "--verbosity", "0")
    assert migrated.returncode == 0, migrated.stderr
    return home


@pytest.mark.long
def test_annotations_of_0_1_are_there_after_an_upgrade(upgraded: Path):
    assert manage(upgraded, "migrate", "--check").returncode == 0
    seen = manage(upgraded, "shell", "--verbosity", "0", "-c", _LOOK)
    assert seen.returncode == 0, seen.stderr
    assert seen.stdout.splitlines() == [
        "6 8",
        "[('An hour.', 'An hour.', 'untruthful')]",
        str([(name, seconds) for name in ("ada", "bruno") for seconds in range(20, 24)]),
        "True",
        *(f"{page} 200" for page in ("", "data/comparisons/", "statistics/", "annotators/")),
    ]


def schema(rows: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Statements by the name of what they make. What stands between the commas of one has no order."""
    return {name: sorted(re.split(r",\s*", sql.partition("(")[2].removesuffix(")"))) for name, sql in rows}


@pytest.mark.long
@pytest.mark.django_db
def test_an_upgraded_database_has_the_tables_of_a_new_one(upgraded: Path):
    # A new one is made by one migration an app, which replaces all before.
    statements = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
    with sqlite3.connect(upgraded / "rondo.sqlite3") as database, connection.cursor() as cursor:
        before = schema(database.execute(statements).fetchall())
        cursor.execute(statements)
        now = schema(cursor.fetchall())
    database.close()
    assert "audit_never_changed" in now
    assert before == now


@pytest.mark.long
def test_a_database_between_old_migrations_is_refused_with_the_way_out(tmp_path: Path):
    home = old_home(tmp_path)
    with sqlite3.connect(home / "rondo.sqlite3") as connection:
        connection.execute(
            "DELETE FROM django_migrations WHERE app IN ('annotation', 'training') "
            "AND (name > '0006' AND app = 'annotation' OR name > '0002' AND app = 'training')"
        )
    connection.close()
    for words in (("migrate",), ("up", "--no-model-server")):
        refused = manage(home, *words)
        assert refused.returncode != 0
        assert "608ee0f" in refused.stderr
