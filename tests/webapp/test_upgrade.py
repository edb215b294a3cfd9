"""Data of earlier releases in the release of today.

`upgrade/from_0_1.sql` was written by the code of 0.1 (commit 8ec9deb: two annotators, six prompts, eight
annotations with spans) and brought by commit 608ee0f to the state in which today's first migrations begin.

`upgrade/from_1_0.sql` was written by the code of 1.0 (commit 83ad7f27: its `tests.api.scene`, one of
everything, and three comparisons that two annotators judged, with spans, ratings, comments and a tie), and so
were its exports. Permissions were left out: `migrate` writes them again. The same code froze its round into
`upgrade/snapshot_of_1_0`, wrote `upgrade/checkpoint_of_1_0` (an adapter of rank 1, numbers drawn from seed 1,
on the model of `tests.tiny`), served it, and described its API (`upgrade/operations_of_1_0.txt`).
"""

import csv
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from django.db import connection

from tests.architecture.test_house import ROOT
from tests.model_server import running_model_server
from tests.tiny import tiny_model_folder
from tests.webapp.running import RunningUp, free_port
from training.contract.snapshot import read_snapshot, read_snapshot_header
from training.recipe.recipe import REMOVED_FIELDS, Recipe, default_recipe
from webapp.api.urls import document
from webapp.checks import no_removed_setting_is_set
from webapp.environment.table import REMOVED

FIXTURES = Path(__file__).parent / "upgrade"
EXPORTS = sorted(path.name for path in (FIXTURES / "exports_of_1_0").iterdir())
CHANGED = {"csv"}
"""Exports that have other columns than in 1.0, as CHANGELOG.md says."""
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


_LOOK_AT_1_0 = """
from django.test import Client
from annotation.models import Assignment, User
held = Assignment.objects.get(annotator__username="alice", state="leased")
for name, page in (
    ("carol", "rounds/1/"), ("carol", ""), ("carol", "data/comparisons/"), ("carol", "statistics/"),
    ("carol", "settings/"), ("alice", "label/"), ("oscar", "rounds/1/"),
):
    user, _ = User.objects.get_or_create(username=name)
    client = Client(SERVER_NAME="localhost")
    client.force_login(user)
    print(name, page, client.get(f"/projects/tea/{page}").status_code)
"""


_API_OF_1_0 = """
from django.test import Client
from annotation.models import User
client = Client(SERVER_NAME="localhost")
client.force_login(User.objects.get(username="carol"))
for line in open("tests/webapp/upgrade/operations_of_1_0.txt"):
    name, method, place = line.split()
    place = place.replace("{slug}", "tea").replace("{number}", "1")
    if method == "GET" and "{" not in place:
        answer = client.get(place)
        print(name, answer.status_code)
"""
_FREEZE_1_0 = """
from annotation.models import Project
from training.services.snapshots import freeze_snapshot
print(freeze_snapshot(project=Project.objects.get(slug="tea"), rounds=[1]).digest)
"""
SNAPSHOT_OF_1_0 = "ff1a9f4bb4a8166844e761c95a442b93c8aab43a4716cfa5659833b7342e84f2"


def manage(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    ours = ("RONDO_", "DJANGO_", "DATABASE_URL")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=ROOT,
        # Pseudonyms of exports follow from the key.
        env={
            **variables,
            "RONDO_HOME": str(home),
            "RONDO_SECRET_KEY": "the upgrade test of 1.0 has no secrets",
        },
        capture_output=True,
        text=True,
        check=False,
    )


def old_home(folder: Path, fixture: str = "from_0_1.sql") -> Path:
    with sqlite3.connect(folder / "rondo.sqlite3") as connection:
        connection.executescript((FIXTURES / fixture).read_text(encoding="utf-8"))
    connection.close()
    return folder


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of 0.1, migrated."""
    home = old_home(tmp_path_factory.mktemp("upgraded"))
    migrated = manage(home, "migrate", "--verbosity", "0")
    assert migrated.returncode == 0, migrated.stderr
    return home


@pytest.fixture(scope="module")
def upgraded_1_0(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of 1.0, migrated."""
    home = old_home(tmp_path_factory.mktemp("upgraded"), "from_1_0.sql")
    migrated = manage(home, "migrate", "--verbosity", "0")
    assert migrated.returncode == 0, migrated.stderr
    return home


def counts(home: Path) -> dict[str, int]:
    """Rows of each table of ours."""
    with sqlite3.connect(home / "rondo.sqlite3") as database:
        names = [
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if name.startswith(("annotation_", "training_", "usersessions_"))
        ]
        rows = {name: database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in names}
    database.close()
    return rows


@pytest.mark.long
def test_every_row_of_1_0_is_there_after_an_upgrade(upgraded_1_0: Path, tmp_path: Path):
    before, after = counts(old_home(tmp_path, "from_1_0.sql")), counts(upgraded_1_0)
    assert sum(count > 0 for count in before.values()) > 45
    assert {name: after[name] for name in before} == before


@pytest.mark.long
@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_of_1_0_has_the_same_bytes_after_an_upgrade(upgraded_1_0: Path, tmp_path: Path, name: str):
    path = tmp_path / name
    exported = manage(
        upgraded_1_0, "export_judgments", "--format", name, "--project", "tea", "--output", str(path)
    )
    assert exported.returncode == 0, exported.stderr
    expected = (FIXTURES / "exports_of_1_0" / name).read_bytes()
    if name not in CHANGED:
        assert path.read_bytes() == expected
        return
    with path.open(newline="") as stream, (FIXTURES / "exports_of_1_0" / name).open(newline="") as old:
        rows, old_rows = list(csv.DictReader(stream)), list(csv.DictReader(old))
    assert [
        {key: row[key] for key in old_row} for row, old_row in zip(rows, old_rows, strict=True)
    ] == old_rows


@pytest.mark.long
def test_the_pages_of_a_project_of_1_0_open_after_an_upgrade(upgraded_1_0: Path):
    assert manage(upgraded_1_0, "migrate", "--check").returncode == 0
    seen = manage(upgraded_1_0, "shell", "--verbosity", "0", "-c", _LOOK_AT_1_0)
    assert seen.returncode == 0, seen.stderr
    pages = ("rounds/1/", "", "data/comparisons/", "statistics/", "settings/")
    assert seen.stdout.splitlines() == [
        *(f"carol {page} 200" for page in pages),
        "alice label/ 200",
        "oscar rounds/1/ 404",
    ]


@pytest.mark.long
def test_the_api_of_1_0_reads_its_data_after_an_upgrade(upgraded_1_0: Path):
    seen = manage(upgraded_1_0, "shell", "--verbosity", "0", "-c", _API_OF_1_0)
    assert seen.returncode == 0, seen.stderr
    statuses = dict(line.split() for line in seen.stdout.splitlines())
    assert len(statuses) > 50
    # What only administrators read, or only somebody who has just given the password.
    refused = {"audit_list_all", "base_model_additions_list", "hub_models_read", "me_data", "status_read"}
    assert {name: status for name, status in statuses.items() if status != "200"} == dict.fromkeys(
        refused, "403"
    )


@pytest.mark.long
def test_a_round_of_1_0_freezes_into_the_snapshot_that_1_0_froze(upgraded_1_0: Path):
    frozen = manage(upgraded_1_0, "shell", "--verbosity", "0", "-c", _FREEZE_1_0)
    assert frozen.returncode == 0, frozen.stderr
    assert frozen.stdout.split() == [SNAPSHOT_OF_1_0]
    folder = upgraded_1_0 / "snapshots" / SNAPSHOT_OF_1_0
    for old in (FIXTURES / "snapshot_of_1_0").iterdir():
        assert (folder / old.name).read_bytes() == old.read_bytes(), old.name


def test_a_snapshot_of_1_0_is_read_and_its_digest_holds():
    assert read_snapshot_header(FIXTURES / "snapshot_of_1_0").digest == SNAPSHOT_OF_1_0
    # Read with its digest compared.
    assert len(list(read_snapshot(FIXTURES / "snapshot_of_1_0"))) == 7


def test_a_checkpoint_of_1_0_is_served_and_answers_as_in_1_0(tmp_path: Path):
    tiny_model_folder(tmp_path / "models" / "SmolLM2-135M-Instruct")
    shutil.copytree(FIXTURES / "checkpoint_of_1_0", tmp_path / "checkpoints" / "tea")
    with running_model_server(tmp_path / "models", tmp_path / "checkpoints") as server:
        answer = httpx.post(
            f"{server.url}/v1/chat/completions",
            headers={"Authorization": f"Bearer {server.key}"},
            json={
                "model": "tea",
                "messages": [{"role": "user", "content": "How long does tea steep?"}],
                "temperature": 0,
                "max_tokens": 12,
            },
            timeout=60,
            trust_env=False,
        )
    # What the model server of 1.0 answered.
    assert answer.json()["choices"][0]["message"]["content"] == "\ufffd\ufffd(\ufffd~~~istist\ufffdists"


@pytest.mark.long
def test_up_brings_a_home_of_1_0_up_to_date_by_itself(tmp_path: Path):
    home = old_home(tmp_path, "from_1_0.sql")
    before = counts(home)
    up = RunningUp(home, free_port(), "--no-model-server", "--no-first-project", migrates=True)
    try:
        up.wait_for(f"Rondo is at {up.address}")
        assert httpx.get(f"{up.address}/login/", trust_env=False, timeout=60).status_code == 200
    finally:
        up.stop()
    assert manage(home, "migrate", "--check").returncode == 0
    after = counts(home)
    assert {name: count for name, count in before.items() if after[name] < count} == {}
    assert (after["annotation_judgment"], after["annotation_user"]) == (7, 7)


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
@pytest.mark.parametrize("release", ["upgraded", "upgraded_1_0"])
def test_an_upgraded_database_has_the_tables_of_a_new_one(release: str, request: pytest.FixtureRequest):
    upgraded: Path = request.getfixturevalue(release)
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


RELEASES = ROOT / "webapp" / "guide" / "reference" / "releases.md"


def listed(heading: str) -> set[str]:
    """Return the names in the first column of a table of the page on versions."""
    part = RELEASES.read_text(encoding="utf-8").partition(f"### {heading}\n")[2]
    return set(re.findall(r"^\| `(\w+)` \|", re.split(r"^##", part, maxsplit=1, flags=re.M)[0], re.M))


def test_every_operation_of_1_0_is_at_its_address_under_its_id_or_one_that_names_it():
    now = {
        f"{method.upper()} {path}": {operation["operationId"], operation.get("x-formerly")}
        for path, methods in document()["paths"].items()
        for method, operation in methods.items()
    }
    of_1_0 = [line.partition(" ") for line in (FIXTURES / "operations_of_1_0.txt").read_text().splitlines()]
    assert len(of_1_0) == 207
    assert [(name, place) for name, _, place in of_1_0 if name not in now.get(place, ())] == []


def test_the_old_names_that_work_are_those_that_the_guide_lists():
    former = {
        operation["x-formerly"]
        for methods in document()["paths"].values()
        for operation in methods.values()
        if "x-formerly" in operation
    }
    assert listed("Old names that still work") == former | set(REMOVED_FIELDS)
    of_1_0 = default_recipe() | {"trainer": "rondo", "trl": None}
    assert Recipe.from_json(of_1_0) == Recipe.from_json(default_recipe())


def test_the_settings_that_are_gone_are_listed_and_warned_about(monkeypatch: pytest.MonkeyPatch):
    assert listed("Settings that are gone") == set(REMOVED)
    for name in REMOVED:
        monkeypatch.setenv(name, "x")
    warned = no_removed_setting_is_set(None)
    assert {message.id for message in warned} == {"rondo.W025"}
    assert {str(message.msg).split()[0] for message in warned} == set(REMOVED)
