"""A back-up while people work, and its return: every row of every table, every byte of every file."""

import dataclasses
import errno
import io
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
import tracemalloc
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone
from pytest_django import Settings

from webapp import backup
from webapp.backup import databases, make_backup, restore_backup
from webapp.backup import target as target_module
from webapp.backup.target import BackupError, BackupManifest, Target

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


def megabytes(output: str) -> float:
    return float(output.rpartition("files, ")[2].split(" ")[0])


def check_there_and_back(folder: Path, database: Callable[[str], str]) -> None:
    first = Rondo(folder / "first", database("first"))
    done = first.run("-m", "tests.webapp.backup_scene", "fill")
    assert done.returncode == 0, done.stderr
    target = str(folder / "backups of Rondo")

    # While people work: what comes back is of one moment, and nothing of it is made up.
    with first.being_worked_on():
        output = first.manage("backup", target)
    # Megabytes of files: 5.0 + 4.2 + 0.2; and the database.
    assert megabytes(output) > 9.3
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

    # At rest: every row, every byte.
    first.manage("backup", target)
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

    [archive] = (folder / "backups of Rondo").rglob("files.tar")
    with archive.open("r+b") as stream:
        stream.seek(archive.stat().st_size // 2)
        byte = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte[0] ^ 1]))
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
def test_postgresql_comes_back_as_it_was(tmp_path: Path, migrated_template: str):
    import psycopg

    parts = urlsplit(os.environ["DATABASE_URL"])
    names = ("first", "second", "third", "fourth")
    with psycopg.connect(parts._replace(path="/postgres").geturl(), autocommit=True) as server:
        try:
            for name in names:
                server.execute(f"drop database if exists rondo_backup_{name} with (force)")
                template = migrated_template if name == "first" else "template1"
                server.execute(f'create database rondo_backup_{name} template "{template}"')
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
    monkeypatch.setattr(backup, "call_command", migrate)
    return fake


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(str(tmp_path / "target"))


def put(home: Path, place: str, text: str) -> None:
    (home / place).parent.mkdir(parents=True, exist_ok=True)
    (home / place).write_text(text)


def stored(target: Target) -> list[str]:
    """Return what there is in a target."""
    return sorted(target._objects.sizes("archives"))


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
    assert stored(target) == []
    assert not (rondo_home / "backups.json").exists()
    with pytest.raises(BackupError, match="holds no back-up"):
        target.manifest()


class FullDisk(io.BytesIO):
    """A stream that takes 20,000 bytes."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > 20_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


@pytest.mark.django_db
def test_of_a_back_up_that_fills_the_disk_or_is_cancelled_nothing_stays(
    database: FakeDatabase, target: Target, rondo_home: Path, monkeypatch: pytest.MonkeyPatch
):
    put(rondo_home, "runs/one/log.txt", "step 1" * 10_000)
    writer = target_module.BackupWriter
    with monkeypatch.context() as patch:
        patch.setattr(target_module, "BackupWriter", lambda _stream, address: writer(FullDisk(), address))
        with pytest.raises(BackupError, match=r"is full, and nothing was kept.*--keep"):
            make_backup(target)
    assert stored(target) == []

    def cancel(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(backup, "_archive_files", cancel)
        with pytest.raises(KeyboardInterrupt):
            make_backup(target)
    assert stored(target) == []


@pytest.mark.django_db
def test_what_a_killed_back_up_left_counts_as_none_and_goes_with_the_first_a_day_later(
    database: FakeDatabase, target: Target, rondo_home: Path
):
    now = timezone.now()
    old, young = (f"{now - timedelta(hours=hours):%Y%m%dT%H%M%S.%fZ}/files.tar" for hours in (25, 1))
    for name in (old, young):
        put(Path(target.address), f"archives/{name}", "half of it")
    assert target.names() == []
    with pytest.raises(BackupError, match="holds no back-up"):
        restore_backup(target)
    made = make_backup(target)
    assert target.names() == [made.name]
    assert not (Path(target.address) / "archives" / old).exists()
    # Somebody may be writing it still.
    assert (Path(target.address) / "archives" / young).exists()


@pytest.mark.django_db
def test_a_folder_that_changes_while_it_is_read_is_read_again(
    database: FakeDatabase,
    target: Target,
    rondo_home: Path,
    tmp_path: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
):
    run = rondo_home / "runs" / "one"
    put(rondo_home, "runs/one/a.txt", "a" * 3_000_000)
    put(rondo_home, "runs/one/old/state.json", "old")
    put(rondo_home, "runs/one/z.txt", "z")
    read = backup._read
    changes: list[Path] = []

    def read_and_change(path: Path) -> backup.Content:
        def content() -> Iterator[bytes]:
            if path.name == "a.txt" and len(changes) < 2:
                if changes:
                    # Its state is replaced meanwhile.
                    (run / "old" / "state.json").unlink()
                    put(rondo_home, "runs/one/new/state.json", "new")
                else:
                    # It becomes shorter after its size was read.
                    path.write_text("a" * 10)
                changes.append(path)
            yield from read(path)()

        return content

    monkeypatch.setattr(backup, "_read", read_and_change)
    make_backup(target)
    assert len(changes) == 2
    home = elsewhere(settings, tmp_path)
    restore_backup(target)
    back = {
        path.relative_to(home).as_posix(): path.read_text() for path in home.rglob("*.*") if path.is_file()
    }
    assert back == {"runs/one/a.txt": "a" * 10, "runs/one/new/state.json": "new", "runs/one/z.txt": "z"}
    monkeypatch.setattr(backup, "_read", lambda path: lambda: iter(()))
    with pytest.raises(BackupError, match="changes faster than it can be read"):
        make_backup(target)


@pytest.mark.django_db
def test_memory_stays_flat_however_large_a_file_is(
    database: FakeDatabase, target: Target, rondo_home: Path, tmp_path: Path, settings: Settings
):
    put(rondo_home, "runs/one/state.safetensors", "")
    os.truncate(rondo_home / "runs" / "one" / "state.safetensors", 100_000_000)
    tracemalloc.start()
    try:
        make_backup(target)
        home = elsewhere(settings, tmp_path)
        restore_backup(target)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (home / "runs" / "one" / "state.safetensors").stat().st_size == 100_000_000
    assert peak < 20_000_000


@pytest.mark.django_db
def test_a_back_up_of_1_0_is_listed_kept_and_refused_with_the_version_that_restores_it(
    database: FakeDatabase, target: Target, rondo_home: Path, capsys: Any
):
    put(Path(target.address), "backups/20260101T000000.000000Z.json", "{}")
    for name in ("", "20260101T000000.000000Z"):
        with pytest.raises(BackupError, match=r"made by Rondo 1\.0.*Restore it with Rondo 1\.0"):
            restore_backup(target, name)
    call_command("backup", target.address, "--keep", "1")
    call_command("backup", target.address, "--list")
    (made,) = target.names()
    lines = capsys.readouterr().out.splitlines()[-2:]
    assert lines == ["20260101T000000.000000Z (of Rondo 1.0, which restores it)", made]


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
    assert {key: list(files) for key, files in made.folders.items()} == {"runs/one": ["log.txt"]}
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
    entry = made.manifest.folders["runs/one"]["log.txt"]
    folders = [{"runs/one": {name: entry}}]
    folders += [{key: {"log.txt": entry}} for key in (name, "logs/one", "secret_key/../../out", "runs")]
    for changed in folders:
        target.write_manifest(made.name, dataclasses.replace(made.manifest, folders=changed))
        with pytest.raises(BackupError, match=r"leads out of the folder|no Rondo puts there"):
            restore_backup(target, force=True)
    # The archive itself is no way out either: what the manifest does not list stays in it.
    target.write_manifest(made.name, made.manifest)
    archive = Path(target.address) / "archives" / made.name / "files.tar"
    with tarfile.open(archive, "a") as stream:
        member = tarfile.TarInfo(name)
        stream.addfile(member)
    with pytest.raises(BackupError, match=r"is damaged: files\.tar"):
        restore_backup(target)
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
            BackupManifest.from_bytes(data, where="there")
    assert BackupManifest.from_bytes(whole, where="there") == made.manifest


@pytest.mark.django_db
def test_older_back_ups_go_with_what_only_they_needed(
    database: FakeDatabase, target: Target, rondo_home: Path
):
    put(rondo_home, "runs/one/log.txt", "old")
    first = make_backup(target)
    put(rondo_home, "runs/one/log.txt", "new")
    second = make_backup(target)
    assert target.forget_all_but(1) == [first.name]
    assert target.names() == [second.name]
    assert target.damaged(second.name, second.manifest) == []
    assert [path.name for path in (Path(target.address) / "archives").iterdir()] == [second.name]


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
    archive = Path(target.address) / "archives" / left / "files.tar"
    archive.write_bytes(archive.read_bytes().replace(b"step 1", b"step 2"))
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
    database: FakeDatabase,
    s3_url: str,
    rondo_home: Path,
    tmp_path: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
):
    put(rondo_home, "runs/one/log.txt", "step 1")
    make_backup(Target(s3_url))
    home = elsewhere(settings, tmp_path)
    restore_backup(Target(s3_url))
    assert (home / "runs" / "one" / "log.txt").read_text() == "step 1"
    assert len(stored(Target(s3_url))) == 3

    def fail(path: Path) -> backup.Content:
        def content() -> Iterator[bytes]:
            yield b"step"
            raise OSError(errno.EIO, "the disk is broken")

        return content

    with monkeypatch.context() as patch:
        patch.setattr(backup, "_read", fail)
        with pytest.raises(OSError, match="the disk is broken"):
            make_backup(Target(s3_url))
    assert len(stored(Target(s3_url))) == 3
    assert Target(s3_url).forget_all_but(1) == []
