"""A pytest plugin: empty PostgreSQL after a test by deleting from the tables that have rows.

Django truncates every table and then fills in content types and permissions again: about 0.2 s of processor
time, which is longer than many of the tests take.
"""

from typing import Any

import pytest
from django.core.management.commands import flush
from django.db import connections

_KEPT = ("django_content_type", "auth_permission")
"""Written by migrations alone, the same for every test."""

_EMPTY = """
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
    """Replace the command that Django empties the database with, where a superuser of PostgreSQL runs it."""
    thorough = flush.Command.handle

    def handle(self: flush.Command, **options: Any) -> None:
        connection = connections[options["database"]]
        if connection.vendor != "postgresql" or options["interactive"]:
            return thorough(self, **options)
        with connection.cursor() as cursor:
            cursor.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
            if not cursor.fetchone()[0]:
                return thorough(self, **options)
            tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
            names = ",".join(sorted(set(tables) - set(_KEPT)))
            cursor.execute(_EMPTY.format(names=names))
        return None

    flush.Command.handle = handle  # type: ignore[method-assign]
