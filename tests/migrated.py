"""A pytest plugin: migrate an empty SQLite database once, and copy it for every process of tests after that.

All migrations take each process about ten seconds of processor time; a copy in memory takes milliseconds. The
copy lies in the folder for temporary files, under a digest of what made it: migrations, models and versions.
"""

import fcntl
import hashlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import django
import pytest
from django.apps import apps
from django.core.management.base import BaseCommand
from django.core.management.commands import migrate
from django.db import connections


@pytest.fixture(scope="session")
def copied_migrations() -> Iterator[pytest.MonkeyPatch]:
    """Let `migrate` copy what it made before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate.Command, "handle", copy_or_migrate)
        yield patch


@pytest.fixture(scope="session")
def django_db_setup(copied_migrations: pytest.MonkeyPatch, django_db_setup: None) -> None:
    """The databases of pytest-django; from then on `migrate` migrates."""
    copied_migrations.undo()


_migrate = migrate.Command.handle


def copy_or_migrate(command: BaseCommand, *args: Any, **options: Any) -> str | None:
    """Copy the migrated database into one in memory. The first process migrates, the others wait for it."""
    connection = connections[options["database"]]
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
