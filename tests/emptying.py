"""A pytest plugin: empty the database after a test by deleting from the tables that have rows.

Django empties every table, fills in content types and permissions again and opens a new connection: 0.05 s of
processor time on SQLite and 0.2 s on PostgreSQL, which is longer than many of the tests take.
"""

from typing import Any

import pytest
from django.core.management.commands import flush
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import TransactionTestCase

_KEPT = ("django_content_type", "auth_permission")
"""Written by migrations alone, the same for every test."""

_EMPTY_POSTGRESQL = """
DO $do$
DECLARE name text; filled boolean;
BEGIN
  SET LOCAL session_replication_role = replica;  -- no trigger and no foreign key: all rows go
  FOREACH name IN ARRAY string_to_array('{names}', ',') LOOP
    EXECUTE format('SELECT EXISTS (SELECT FROM %I)', name) INTO filled;
    IF filled THEN EXECUTE format('DELETE FROM %I', name); END IF;
  END LOOP;
END $do$
"""


@pytest.fixture(autouse=True, scope="session")
def quick_flush() -> None:
    """Replace the command that Django empties the database with, and keep the connection where it is whole.

    On a new connection PostgreSQL would look up each table and its indexes again: 0.05 s.
    """
    thorough = flush.Command.handle

    def handle(self: flush.Command, **options: Any) -> None:
        connection = connections[options["database"]]
        if options["interactive"] or not empty(connection):
            thorough(self, **options)

    flush.Command.handle = handle  # type: ignore[method-assign]
    TransactionTestCase._should_reload_connections = _is_broken  # type: ignore[attr-defined]


def empty(connection: BaseDatabaseWrapper) -> bool:
    """Delete all rows but those of migrations; return False where this user may not."""
    tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
    names = sorted(set(tables) - set(_KEPT))
    if connection.vendor == "sqlite":
        quote = connection.ops.quote_name
        filled = " UNION ALL ".join(
            f"SELECT '{name}' WHERE EXISTS (SELECT 1 FROM {quote(name)})" for name in names
        )
        with connection.cursor() as cursor:
            cursor.execute(filled)
            emptied = [f"DELETE FROM {quote(name)}" for (name,) in cursor.fetchall()]
        connection.ops.execute_sql_flush(emptied)
        return True
    with connection.cursor() as cursor:
        cursor.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
        if not cursor.fetchone()[0]:
            return False
        cursor.execute(_EMPTY_POSTGRESQL.format(names=",".join(names)))
        # What a test holds until its connection is closed.
        cursor.execute("SELECT pg_advisory_unlock_all()")
    return True


def _is_broken(case: TransactionTestCase) -> bool:
    return not all(
        each.connection is None or each.is_usable() for each in connections.all(initialized_only=True)
    )
