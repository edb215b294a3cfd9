"""Rows and files that many tests begin with: made once a process, written into the database of each test.

Unlike `shared_rows`, this also serves tests that commit, and tests of different modules.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from django.db import connection, transaction

from tests.shared_rows import SharedRows, made_in


class StoredRows:
    """Statements that insert the rows of a scene, and the home with its files."""

    def __init__(self, home: Path, make: Callable[[], None]) -> None:
        """Make the scene in a transaction that is rolled back. The connection must be usable."""
        home.mkdir()
        self._home = home
        SharedRows.setUpClass()
        try:
            _leave_low_keys()
            before = set(_insertions())
            with made_in(home):
                make()
            self._statements = [statement for statement in _insertions() if statement not in before]
        finally:
            SharedRows.tearDownClass()

    def write(self, home: Path) -> None:
        """Insert the rows, and copy the files to this home."""
        with transaction.atomic(), connection.cursor() as cursor:
            for statement in self._statements:
                cursor.execute(statement.replace(str(self._home), str(home)))
        shutil.copytree(self._home, home, dirs_exist_ok=True)


def _leave_low_keys() -> None:
    """Let primary keys begin where no row of a test's own is; sequences of PostgreSQL are never reset."""
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM sqlite_sequence")
            cursor.execute(
                "INSERT INTO sqlite_sequence SELECT name, 1000000 FROM sqlite_master "
                "WHERE type = 'table' AND sql LIKE '%AUTOINCREMENT%'"
            )


def _insertions() -> list[str]:
    """Return a statement for each row of the application's tables, with its values as literals."""
    literal = "quote({})" if connection.vendor == "sqlite" else "quote_nullable({}::text)"
    statements = []
    with connection.cursor() as cursor:
        for table in connection.introspection.django_table_names(only_existing=True, include_views=False):
            described = connection.introspection.get_table_description(cursor, table)
            quoted = [connection.ops.quote_name(column.name) for column in described]
            values = " || ', ' || ".join(literal.format(column) for column in quoted)
            name = connection.ops.quote_name(table)
            cursor.execute(f"SELECT {values} FROM {name}")
            insert = f"INSERT INTO {name} ({', '.join(quoted)}) VALUES"
            statements += [f"{insert} ({row})" for (row,) in cursor.fetchall()]
    return statements
