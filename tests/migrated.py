"""A pytest plugin: migrate an empty database once, and copy it for every process of tests after that.

All migrations take each process three seconds of processor time on SQLite and fifteen on PostgreSQL. SQLite's
copy lies in the folder for temporary files, PostgreSQL's is a template on the server; both under a digest of
what made them: migrations, models and versions.
"""

import fcntl
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import django
import pytest
from django.apps import apps
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.core.management.commands import migrate
from django.db import connection, connections
from pytest_django import DjangoDbBlocker

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def copied_migrations(django_db_blocker: DjangoDbBlocker) -> Iterator[pytest.MonkeyPatch]:
    """Let `migrate` copy what it made before."""
    with pytest.MonkeyPatch.context() as patch:
        if connection.vendor == "postgresql":
            with django_db_blocker.unblock():
                patch.setitem(connection.settings_dict["TEST"], "TEMPLATE", template_on_the_server())
        patch.setattr(migrate.Command, "handle", copy_or_migrate)
        yield patch


@pytest.fixture(scope="session")
def django_db_setup(copied_migrations: pytest.MonkeyPatch, django_db_setup: None) -> None:
    """The databases of pytest-django; from then on `migrate` migrates."""
    copied_migrations.undo()


_migrate = migrate.Command.handle


def copy_or_migrate(command: BaseCommand, *args: Any, **options: Any) -> str | None:
    """Copy the migrated database into one in memory. The first process migrates, the others wait for it.

    A database on PostgreSQL was made as a copy.
    """
    connection = connections[options["database"]]
    if connection.vendor == "postgresql":
        return None
    if connection.vendor != "sqlite" or not connection.is_in_memory_db():  # type: ignore[attr-defined]
        return _migrate(command, *args, **options)
    connection.ensure_connection()
    copy = path_of_copy()
    with copy.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if copy.exists():
            with closing(sqlite3.connect(copy)) as stored:
                stored.backup(connection.connection)
            return None
        _migrate(command, *args, **options)
        unfinished = copy.with_suffix(".unfinished")
        unfinished.unlink(missing_ok=True)
        with closing(sqlite3.connect(unfinished)) as stored:
            connection.connection.backup(stored)
        unfinished.replace(copy)
        return None


@pytest.fixture
def migrated_template(django_db_blocker: DjangoDbBlocker) -> str:
    """Name of a migrated database on the PostgreSQL of these tests, to make others from."""
    with django_db_blocker.unblock():
        return template_on_the_server()


def give_database(home: Path) -> None:
    """Write a migrated database into the folder of an installation that has none.

    Its first `up` or `migrate` has nothing left to do: that both migrate is shown by tests of their own.
    """
    if (home / "rondo.sqlite3").exists():
        return
    home.mkdir(parents=True, exist_ok=True)
    copy = path_of_copy()
    with copy.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not copy.exists():
            with tempfile.TemporaryDirectory() as folder:
                inherited = {key: value for key, value in os.environ.items() if not key.startswith("RONDO_")}
                inherited.pop("DATABASE_URL", None)
                environment = {**inherited, "DJANGO_SETTINGS_MODULE": "webapp.settings", "RONDO_HOME": folder}
                command = [sys.executable, "manage.py", "migrate", "--skip-checks", "--verbosity", "0"]
                subprocess.run(command, cwd=ROOT, env=environment, check=True)
                with closing(sqlite3.connect(Path(folder) / "rondo.sqlite3")) as made:
                    unfinished = copy.with_suffix(".unfinished")
                    unfinished.unlink(missing_ok=True)
                    with closing(sqlite3.connect(unfinished)) as stored:
                        made.backup(stored)
                unfinished.replace(copy)
    shutil.copyfile(copy, home / "rondo.sqlite3")
    (home / "rondo.sqlite3").chmod(0o600)


def template_on_the_server() -> str:
    """Return the name of a migrated database on the PostgreSQL of these tests; earlier ones are dropped.

    The first process makes it, the others wait.
    """
    path = path_of_copy()
    name, unfinished = f"rondo_migrated_{path.stem}", f"rondo_unfinished_{path.stem}"
    with path.with_suffix(".template.lock").open("w") as lock, connection._nodb_cursor() as cursor:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cursor.execute("SELECT datname FROM pg_database WHERE datname ~ '^rondo_(migrated|unfinished)_'")
        present = [row[0] for row in cursor.fetchall()]
        if name in present:
            return name
        for earlier in present:
            cursor.execute(f'DROP DATABASE IF EXISTS "{earlier}" WITH (FORCE)')
        cursor.execute(f'CREATE DATABASE "{unfinished}"')
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(connection.settings_dict, "NAME", unfinished)
            connection.close()
            call_command("migrate", verbosity=0, interactive=False)
            connection.close()
        cursor.execute(f'ALTER DATABASE "{unfinished}" RENAME TO "{name}"')
    return name


def path_of_copy() -> Path:
    """Return where the migrated database of this code lies, in a folder that only its owner can write to."""
    digest = hashlib.sha256(f"{django.VERSION} {sqlite3.sqlite_version}".encode())
    for app in apps.get_app_configs():
        folder = Path(app.path)
        for part in ("apps.py", "models.py", "models", "migrations"):
            found = folder / part
            for file in sorted(found.rglob("*.py")) if found.is_dir() else [found] if found.exists() else []:
                digest.update(f"{file.relative_to(folder)}\0".encode() + file.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"rondo-test-databases-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else: delete it.")
    return folder / f"{digest.hexdigest()[:32]}.sqlite3"
