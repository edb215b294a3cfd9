"""A new installation takes one migration an app; one that grew, or stopped half way, gets the same tables."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper

ROOT = Path(__file__).resolve().parents[2]
HALF_WAY = ("annotation", "0011_transfers", "training", "0009_programs")
ON_POSTGRES = """
    SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'c'
    UNION ALL SELECT indexname, indexdef FROM pg_indexes
        WHERE schemaname = 'public'
    UNION ALL SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace
"""
ON_SQLITE = "SELECT name, sql FROM sqlite_master WHERE type IN ('index', 'trigger') AND sql IS NOT NULL"


@pytest.fixture
def grown(tmp_path: Path) -> Iterator[tuple[BaseDatabaseWrapper, dict[str, str]]]:
    """An empty database beside that of the tests, and the environment that leads to it."""
    other = connection.copy()
    environment = {**os.environ, "RONDO_HOME": str(tmp_path), "DJANGO_SETTINGS_MODULE": "webapp.settings"}
    environment.pop("DATABASE_URL", None)
    if connection.vendor == "postgresql":
        name = f"{connection.settings_dict['NAME']}_grown"
        url = re.sub(r"/[^/]*$", f"/{name}", os.environ["DATABASE_URL"])
        environment["DATABASE_URL"] = url
        other.settings_dict["NAME"] = name
        with connection._nodb_cursor() as cursor:
            cursor.execute(f'DROP DATABASE IF EXISTS "{name}"')
            cursor.execute(f'CREATE DATABASE "{name}"')
    else:
        other.settings_dict["NAME"] = str(tmp_path / "rondo.sqlite3")
    try:
        yield other, environment
    finally:
        other.close()
        if connection.vendor == "postgresql":
            with connection._nodb_cursor() as cursor:
                cursor.execute(f'DROP DATABASE "{name}"')


def python(*arguments: str, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def tables(database: BaseDatabaseWrapper) -> dict[str, Any]:
    """Columns, constraints, indexes and triggers, whatever the order in which they were made."""
    found: dict[str, Any] = {}
    look = database.introspection
    with database.cursor() as cursor:
        for table in look.table_names(cursor):
            columns = {column.name: tuple(column[1:]) for column in look.get_table_description(cursor, table)}
            constraints = look.get_constraints(cursor, table).values()
            found[table] = columns, Counter(_constraint(one) for one in constraints)
        if database.vendor == "postgresql":
            cursor.execute(ON_POSTGRES)
            found["texts"] = Counter(cursor.fetchall())
            return found
        cursor.execute(ON_SQLITE)
        found["texts"] = Counter((name, " ".join(sql.split())) for name, sql in cursor.fetchall())
        cursor.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        found["checks"] = {name: Counter(_checks(sql)) for name, sql in cursor.fetchall()}
    return found


def _constraint(one: Mapping[str, Any]) -> str:
    # The columns of a check have no order; those of a key do.
    columns = sorted(one["columns"]) if one["check"] else list(one["columns"] or [])
    rest = sorted((key, str(value)) for key, value in one.items() if key not in ("columns", "definition"))
    return f"{columns} {rest}"


def _checks(sql: str) -> Iterator[str]:
    """Every `CHECK (...)` of a table, with its name if it has one."""
    for found in re.finditer(r'(?:CONSTRAINT "(\w+)" )?CHECK \(', sql):
        depth, end = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(sql[end], 0)
            end += 1
        yield sql[found.start() : end]


@pytest.mark.django_db
def test_an_installation_that_stopped_half_way_gets_the_tables_of_a_new_one(grown):
    database, environment = grown
    python("-m", "tests.grown", *HALF_WAY, environment=environment)
    python("manage.py", "migrate", "--verbosity", "0", environment=environment)
    # Now it has taken them all, and none of those that replace them.
    python("manage.py", "migrate", "--check", environment=environment)
    new, old = tables(connection), tables(database)
    assert set(new) == set(old)
    for name in new:
        assert new[name] == old[name], name
    # Not the equality of two empty things.
    assert len(new) > 60
    assert "audit_never_changed" in {name for name, _ in new["texts"]}
