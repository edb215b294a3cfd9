"""Dump and load of the database: SQLite by its online back-up, PostgreSQL by pg_dump and psql."""

import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any

from django.db import connection, connections, transaction

from webapp.backup.target import BackupError

_MOST_CHARACTERS = 2000
_DUMP = ("pg_dump", "--format=plain", "--no-owner", "--no-privileges", "--encoding=UTF8")
_LOAD = (
    "psql",
    "--no-psqlrc",
    "--quiet",
    "--single-transaction",
    "--set=ON_ERROR_STOP=1",
    "--output=/dev/null",
)


class Dump:
    """A consistent dump of the database. Read `stream` to its end."""

    def __init__(self, stream: IO[bytes], rows: Mapping[str, int], migrations: Iterable[str]) -> None:
        self.stream = stream
        self.rows = rows
        self.migrations = tuple(sorted(migrations))


@contextmanager
def dumped() -> Iterator[Dump]:
    """Dump the database consistently while others keep writing."""
    with _dumped_sqlite() if connection.vendor == "sqlite" else _dumped_postgresql() as dump:
        yield dump


@contextmanager
def _dumped_sqlite() -> Iterator[Dump]:
    name = str(connection.settings_dict["NAME"])
    with tempfile.TemporaryDirectory(prefix="rondo-backup-") as folder:
        copy = Path(folder) / "rondo.sqlite3"
        try:
            with (
                closing(sqlite3.connect(name, timeout=60)) as source,
                closing(sqlite3.connect(copy)) as target,
            ):
                # In a single step: with WAL, writers are not blocked and the copy is consistent.
                source.backup(target)
                target.execute("PRAGMA journal_mode=DELETE")
                rows = counted(target.cursor(), _tables_of_sqlite(target.cursor()))
                applied = target.execute("SELECT app, name FROM django_migrations").fetchall()
        except sqlite3.Error as error:
            raise BackupError(
                f"The database was not copied to {folder} ({error}). Free some space there, or set TMPDIR to "
                "another folder, and start again."
            ) from error
        with copy.open("rb") as stream:
            yield Dump(stream, rows, [f"{app}.{name}" for app, name in applied])


@contextmanager
def _dumped_postgresql() -> Iterator[Dump]:
    with transaction.atomic(), connection.cursor() as cursor:
        # The counts and the dump use the same snapshot.
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute("SELECT pg_export_snapshot()")
        snapshot = cursor.fetchone()[0]
        cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
        rows = counted(cursor, [name for (name,) in cursor.fetchall()])
        cursor.execute("SELECT app, name FROM django_migrations")
        migrations = [f"{app}.{name}" for app, name in cursor.fetchall()]
        command = [_program(_DUMP[0]), *_DUMP[1:], f"--snapshot={snapshot}"]
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=_server_variables())
            try:
                yield Dump(process.stdout or log, rows, migrations)
                if process.wait() != 0:
                    raise BackupError(f"pg_dump failed: {_read(log)}")
            finally:
                process.kill()
                process.wait()
                if process.stdout:
                    process.stdout.close()


def load(content: Iterable[bytes]) -> None:
    """Replace the whole database by a dump, atomically. Raise `BackupError`."""
    if connection.vendor == "sqlite":
        _load_sqlite(content)
    else:
        _load_postgresql(content)


def _load_sqlite(content: Iterable[bytes]) -> None:
    name = Path(str(connection.settings_dict["NAME"]))
    connections.close_all()
    draft = name.with_name(f".{name.name}.restored")
    try:
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            for data in content:
                stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        with closing(sqlite3.connect(draft)) as database:
            result = database.execute("PRAGMA integrity_check").fetchone()[0]
        if result != "ok":
            raise BackupError(f"The database in the back-up is damaged: {result}. Take an earlier one.")
        for suffix in ("-wal", "-shm"):
            name.with_name(name.name + suffix).unlink(missing_ok=True)
        os.replace(draft, name)
    finally:
        draft.unlink(missing_ok=True)


def _load_postgresql(content: Iterable[bytes]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_schema()")
        schema = connection.ops.quote_name(cursor.fetchone()[0] or "public")
    connections.close_all()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [_program(_LOAD[0]), *_LOAD[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=_server_variables(),
        )
        complete = False
        try:
            if process.stdin is None:
                raise BackupError("psql takes no input.")
            # Part of the single transaction: if the dump breaks off, the old content stays.
            process.stdin.write(f"DROP SCHEMA {schema} CASCADE; CREATE SCHEMA {schema};\n".encode())
            for data in content:
                process.stdin.write(data)
            process.stdin.close()
            complete = True
        except BrokenPipeError:
            # psql reports the reason on stderr.
            pass
        finally:
            if not complete:
                process.kill()
            process.wait()
        if process.returncode != 0:
            raise BackupError(f"psql failed, and the database is as it was: {_read(errors)}")


def rows_now() -> dict[str, int]:
    """Return the number of rows of each table."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            return counted(cursor, _tables_of_sqlite(cursor))
        return counted(cursor, connection.introspection.table_names(cursor))


def counted(cursor: Any, tables: Iterable[str]) -> dict[str, int]:
    """Return the number of rows by table."""
    counts = {}
    for table in sorted(tables):
        cursor.execute(f"SELECT count(*) FROM {connection.ops.quote_name(table)}")  # noqa: S608 - a table's name
        counts[table] = int(cursor.fetchone()[0])
    return counts


def _tables_of_sqlite(cursor: Any) -> list[str]:
    cursor.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return [name for (name,) in cursor.fetchall()]


def _program(name: str) -> str:
    if path := shutil.which(name):
        return path
    raise BackupError(
        f"{name} is not installed (Debian: apt install postgresql-client), of the server's version."
    )


def _server_variables() -> dict[str, str]:
    """Return the connection as variables for PostgreSQL's programs; other users can read command lines."""
    database = connection.settings_dict
    named = {
        "PGHOST": "HOST",
        "PGPORT": "PORT",
        "PGUSER": "USER",
        "PGPASSWORD": "PASSWORD",
        "PGDATABASE": "NAME",
    }
    values = {variable: str(database[name]) for variable, name in named.items() if database.get(name)}
    options = {
        f"PG{name.upper()}": str(database["OPTIONS"][name])
        for name in ("sslmode", "sslrootcert")
        if name in database.get("OPTIONS", {})
    }
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**inherited, **values, **options}


def _read(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode("utf-8", "replace").strip()[-_MOST_CHARACTERS:] or "it did not say why"
