"""A back-up while people work, and its return: every row of every table, every byte of every file."""

import dataclasses
import io
import json
import os
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from training.store import Listing, Objects
from webapp.backup import BackupError, Target, databases, make_backup, restore_backup, restoring
from webapp.backup.target import Manifest

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("checkpoints", "snapshots", "runs", "imports", "models")

Rows = Mapping[str, list[str]]


class Rondo:
    """One installation: a home and a database, worked on by processes of its own."""

    def __init__(self, home: Path, database_url: str = "") -> None:
        self.home = home
        self.database_url = database_url
        home.mkdir()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RONDO_")}
        self.environment = {
            **inherited,
            "DJANGO_SETTINGS_MODULE": "webapp.settings",
            "RONDO_HOME": str(home),
            "DATABASE_URL": database_url,
        }

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def manage(self, *words: str) -> str:
        done = self.run("manage.py", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def being_worked_on(self) -> Iterator[None]:
        """While rows and files are written; begins with the first that was."""
        writer = subprocess.Popen(
            [sys.executable, "-m", "tests.webapp.backup_scene", "write"],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with writer:
            assert writer.stdout.readline()
            yield
            assert writer.poll() is None
            writer.stdin.close()
            # What it says meanwhile must not fill the pipe.
            writer.stdout.read()
        assert writer.returncode == 0

    def rows(self) -> Rows:
        if not self.database_url:
            with closing(sqlite3.connect(self.home / "rondo.sqlite3")) as database:
                assert database.execute("PRAGMA foreign_key_check").fetchall() == []
                tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
                names = [name for (name,) in database.execute(tables)]
                return {n: sorted(map(repr, database.execute(f'SELECT * FROM "{n}"'))) for n in names}
        import psycopg

        with psycopg.connect(self.database_url) as server:
            table_rows = server.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
            ).fetchall()
            return {
                n: sorted(map(repr, server.execute(f'SELECT * FROM "{n}"').fetchall())) for (n,) in table_rows
            }

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.home)): path.read_bytes()
            for kind in KINDS
            for path in (self.home / kind).rglob("*")
            if path.is_file()
        }


def new_megabytes(output: str) -> float:
    return float(output.rpartition("of it new ")[2].split(" ")[0])


def check_there_and_back(folder: Path, database: Callable[[str], str]) -> None:
    first = Rondo(folder / "first", database("first"))
    done = first.run("-m", "tests.webapp.backup_scene", "fill")
    assert done.returncode == 0, done.stderr
    target = str(folder / "backups of Rondo")

    # While people work: what comes back is of one moment, and nothing of it is made up.
    with first.being_worked_on():
        output = first.manage("backup", target)
    # Megabytes of files: 5.0 + 4.2 + 0.2; and the database.
    assert new_megabytes(output) > 9.3
    second = Rondo(folder / "second", database("second"))
    second.manage("restore", target)
    there, back = first.rows(), second.rows()
    assert set(back) == set(there)
    tables = ("annotation_prompt", "annotation_comparison", "annotation_judgment", "annotation_user")
    for table in tables:
        assert len(back[table]) <= len(there[table])
    assert set(back["annotation_judgment"]) <= set(there["annotation_judgment"])
    assert len(back["annotation_judgment"]) >= 1
    assert back["annotation_project"] == there["annotation_project"]
    assert second.files().keys() >= {"checkpoints/tea-1/adapter.safetensors", "imports/0a1b.csv"}

    # At rest: every row, every byte; and the second back-up is small.
    output = first.manage("backup", target)
    assert new_megabytes(output) < 4
    stamp = json.loads((first.home / "backups.json").read_text())
    assert stamp["rows"] == sum(map(len, first.rows().values()))
    assert stamp["files"] == len(first.files())
    third = Rondo(folder / "third", database("third"))
    third.manage("restore", target)
    assert third.rows() == first.rows()
    assert third.files() == first.files()
    # It is a Rondo that can be backed up again, and that is as good.
    third.manage("backup", target, "--keep", "1")
    assert "is intact" in third.manage("backup", target, "--verify")

    # Nobody's work is overwritten by mistake.
    refused = third.run("manage.py", "restore", target)
    assert refused.returncode == 1
    assert "The database is in use" in refused.stderr

    piece = max((folder / "backups of Rondo" / "pieces").rglob("*"), key=lambda path: path.stat().st_size)
    piece.write_bytes(b"X" + piece.read_bytes()[1:])
    fourth = Rondo(folder / "fourth", database("fourth"))
    damaged = fourth.run("manage.py", "restore", target)
    assert damaged.returncode == 1
    assert "is damaged" in damaged.stderr
    assert fourth.files() == {}


@pytest.mark.long
@pytest.mark.slow
def test_sqlite_comes_back_as_it_was(tmp_path: Path):
    check_there_and_back(tmp_path, lambda name: "")


@pytest.mark.postgres
def test_postgresql_comes_back_as_it_was(tmp_path: Path):
    import psycopg

    parts = urlsplit(os.environ["DATABASE_URL"])
    names = ("first", "second", "third", "fourth")
    with psycopg.connect(parts._replace(path="/postgres").geturl(), autocommit=True) as server:
        try:
            for name in names:
                server.execute(f"drop database if exists rondo_backup_{name} with (force)")
                server.execute(f"create database rondo_backup_{name}")
            check_there_and_back(tmp_path, lambda name: parts._replace(path=f"/rondo_backup_{name}").geturl())
        finally:
            for name in names:
                server.execute(f"drop database if exists rondo_backup_{name} with (force)")


# ── pieces of it, without a database ──────────────────────────────────────────────────
class FakeDatabase:
    """A stand-in for the database that is dumped and loaded."""

    def __init__(self) -> None:
        self.content = b"all rows"
        self.loaded: bytes | None = None
        self.rows = {"annotation_user": 0}
        self.migrations = ["annotation.0001_initial"]
        self.is_migrated = False


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> FakeDatabase:
    fake = FakeDatabase()

    @contextmanager
    def dumped() -> Iterator[databases.Dump]:
        yield databases.Dump(io.BytesIO(fake.content), fake.rows, fake.migrations)

    def load(content: Iterator[bytes]) -> None:
        fake.loaded = b"".join(content)

    def migrate(name: str, **_: Any) -> None:
        assert name == "migrate"
        fake.is_migrated = True

    monkeypatch.setattr(databases, "dumped", dumped)
    monkeypatch.setattr(databases, "load", load)
    monkeypatch.setattr(databases, "rows_now", lambda: fake.rows)
    monkeypatch.setattr(restoring, "call_command", migrate)
    return fake


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(str(tmp_path / "target"))


def put(home: Path, place: str, text: str) -> None:
    (home / place).parent.mkdir(parents=True, exist_ok=True)
    (home / place).write_text(text)


def elsewhere(settings: Settings, tmp_path: Path) -> Path:
    """From now on this is another, empty installation."""
    home = tmp_path / f"home-{uuid.uuid4().hex}"
    home.mkdir()
    settings.RONDO_HOME = home
    return home


@pytest.mark.django_db
def test_a_back_up_without_its_manifest_is_none(
    database: FakeDatabase, target: Target, rondo_home: Path, monkeypatch: pytest.MonkeyPatch
):
    put(rondo_home, "runs/one/log.txt", "step 1")
    with monkeypatch.context() as patch:
        patch.setattr(Target, "write_manifest", lambda *_: (_ for _ in ()).throw(OSError("the cable is cut")))
        with pytest.raises(OSError, match="the cable is cut"):
            make_backup(target)
    assert target.names() == []
    assert not (rondo_home / "backups.json").exists()
    with pytest.raises(BackupError, match="holds no back-up"):
        target.manifest()
    # What was sent is not sent again.
    assert make_backup(Target(target.address)).written == 0


@pytest.mark.django_db
def test_links_and_marks_between_processes_are_left_out_and_the_key_unless_it_is_asked_for(
    database: FakeDatabase, target: Target, rondo_home: Path, tmp_path: Path, settings: Settings
):
    put(tmp_path, "outside/secret", "not ours")
    put(rondo_home, "runs/one/log.txt", "step 1")
    put(rondo_home, "runs/one/lock", "1")
    put(rondo_home, "models/base/model.bin", "weights")
    put(rondo_home, "secret_key", "sesame")
    (rondo_home / "runs" / "one" / "link").symlink_to(tmp_path / "outside" / "secret")
    (rondo_home / "runs" / "two").symlink_to(tmp_path / "outside")
    made = make_backup(target, models=False).manifest
    assert {key: list(folder.files) for key, folder in made.folders.items()} == {"runs/one": ["log.txt"]}
    assert b"sesame" not in b"".join(p.read_bytes() for p in (tmp_path / "target").rglob("*") if p.is_file())

    make_backup(target, secrets=True)
    home = elsewhere(settings, tmp_path)
    restore_backup(target)
    assert (home / "secret_key").read_text() == "sesame"
    assert (home / "secret_key").stat().st_mode & 0o077 == 0
    assert (home / "models" / "base" / "model.bin").read_text() == "weights"
    assert database.loaded == b"all rows"
    assert database.is_migrated


@pytest.mark.django_db
def test_a_restore_that_broke_off_goes_on_and_files_of_others_are_never_overwritten(
    database: FakeDatabase, target: Target, rondo_home: Path, tmp_path: Path, settings: Settings
):
    put(rondo_home, "runs/one/log.txt", "step 1")
    put(rondo_home, "imports/0a.csv", "a,b\n")
    make_backup(target)
    home = elsewhere(settings, tmp_path)
    put(home, "runs/one/log.txt", "step 1")
    restore_backup(target)
    assert (home / "imports" / "0a.csv").read_text() == "a,b\n"

    home = elsewhere(settings, tmp_path)
    put(home, "runs/mine/log.txt", "step 9")
    database.loaded = None
    with pytest.raises(BackupError, match=r"runs/mine is not of this back-up.*--force"):
        restore_backup(target)
    assert database.loaded is None
    restore_backup(target, force=True)
    assert database.loaded is not None


@pytest.mark.django_db
def test_a_newer_rondos_back_up_is_refused_and_another_sort_of_databases(
    database: FakeDatabase, target: Target, rondo_home: Path
):
    database.migrations = ["annotation.0001_initial", "training.0999_tomorrow"]
    made = make_backup(target)
    with pytest.raises(BackupError, match=r"newer Rondo.*knows training\.0999_tomorrow"):
        restore_backup(target)
    other = dataclasses.replace(made.manifest, vendor="oracle", migrations=())
    target.write_manifest(made.name, other)
    with pytest.raises(BackupError, match="The back-up is of oracle"):
        restore_backup(target)
    assert database.loaded is None


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["../../out", "/tmp/out", "a/../../out"])
def test_a_back_up_that_leads_out_of_the_home_is_refused(
    database: FakeDatabase, target: Target, rondo_home: Path, tmp_path: Path, settings: Settings, name: str
):
    put(rondo_home, "runs/one/log.txt", "step 1")
    made = make_backup(target)
    home = elsewhere(settings, tmp_path)
    entry = made.manifest.folders["runs/one"].files["log.txt"]
    inside = dataclasses.replace(made.manifest, folders={"runs/one": Listing({name: entry})})
    target.write_manifest(made.name, inside)
    with pytest.raises(BackupError, match="leads out of the folder"):
        restore_backup(target)
    for key in (name, "logs/one", "secret_key/../../out", "runs"):
        as_key = dataclasses.replace(made.manifest, folders={key: Listing({"log.txt": entry})})
        target.write_manifest(made.name, as_key)
        with pytest.raises((BackupError, OSError)):
            restore_backup(target, force=True)
    assert database.loaded is None
    assert [path for path in home.rglob("*") if path.is_file()] == []


@pytest.mark.django_db
def test_a_damaged_manifest_and_a_torn_one_are_refused(
    database: FakeDatabase, target: Target, rondo_home: Path
):
    made = make_backup(target)
    whole = made.manifest.to_bytes()
    changed = json.loads(whole)
    changed["rows"]["annotation_user"] = 7
    for data in (whole[:-9], b"", json.dumps(changed).encode()):
        with pytest.raises(BackupError, match="is damaged"):
            Manifest.from_bytes(data, where="there")
    assert Manifest.from_bytes(whole, where="there") == made.manifest


@pytest.mark.django_db
def test_older_back_ups_go_with_what_only_they_needed(
    database: FakeDatabase, target: Target, rondo_home: Path
):
    put(rondo_home, "runs/one/log.txt", "old")
    put(rondo_home, "runs/one/kept.txt", "in both")
    first = make_backup(target)
    put(rondo_home, "runs/one/log.txt", "new")
    second = make_backup(target)
    assert target.forget_all_but(1) == [first.name]
    assert target.names() == [second.name]
    assert target.damaged(second.manifest) == []
    left = {name.rpartition("/")[2] for name in target._objects.sizes("pieces")}
    assert left == second.manifest.pieces


@pytest.mark.django_db
def test_the_command_says_what_is_there_and_what_of_it_is_damaged(
    database: FakeDatabase, target: Target, rondo_home: Path, capsys: Any
):
    put(rondo_home, "runs/one/log.txt", "step 1")
    call_command("backup", target.address)
    call_command("backup", target.address, "--keep", "1")
    call_command("backup", target.address, "--list")
    (left,) = target.names()
    assert capsys.readouterr().out.splitlines()[-1] == left
    call_command("backup", target.address, "--verify")
    assert "is intact: 0.0 MB" in capsys.readouterr().out
    for piece in target.manifest().folders["runs/one"].pieces:
        target._objects.write(f"pieces/{piece[:2]}/{piece}", b"step 2")
    with pytest.raises(CommandError, match=r"^Damaged: runs/one/log.txt\.$"):
        call_command("backup", target.address, "--verify")
    with pytest.raises(CommandError, match=r"is damaged: runs/one/log.txt\. Nothing was restored"):
        call_command("restore", target.address)


@pytest.mark.django_db
def test_files_of_a_store_are_backed_up_from_there_and_come_back_into_it(
    database: FakeDatabase, target: Target, rondo_home: Path, tmp_path: Path, settings: Settings
):
    from training.files import shared as shared_files

    settings.RONDO_STORE_URL = f"memory://{uuid.uuid4().hex}"
    put(rondo_home, "checkpoints/one/weights.bin", "weights")
    shared_files.publish(rondo_home / "checkpoints" / "one")
    # This machine has nothing of it, and something that the store has not.
    home = elsewhere(settings, tmp_path)
    put(home, "runs/mine/log.txt", "step 1")
    made = make_backup(target)
    assert set(made.manifest.folders) == {"checkpoints/one", "runs/mine"}

    settings.RONDO_STORE_URL = f"memory://{uuid.uuid4().hex}"
    elsewhere(settings, tmp_path)
    restore_backup(target)
    assert shared_files.shared().read("checkpoints/one", "weights.bin") == b"weights"
    assert shared_files.shared().names("runs") == ["mine"]


@pytest.mark.django_db
def test_a_back_up_goes_to_a_bucket_and_comes_back(
    database: FakeDatabase, s3_url: str, rondo_home: Path, tmp_path: Path, settings: Settings
):
    put(rondo_home, "runs/one/log.txt", "step 1")
    make_backup(Target(s3_url))
    home = elsewhere(settings, tmp_path)
    restore_backup(Target(s3_url))
    assert (home / "runs" / "one" / "log.txt").read_text() == "step 1"
    assert Objects(s3_url).sizes("backups").keys() != set()
