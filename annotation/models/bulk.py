"""Many new rows at once: what an import writes.

`bulk_create` prepares every value of every row through its field, which takes longer than all the
rest of an import. Here rows come as the database takes them and go in by the fastest way that it
has: COPY on PostgreSQL, prepared statements of many rows each on SQLite.
"""

import gc
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import chain, islice
from typing import Any

import orjson
from django.db import NotSupportedError, connection, models

_ROWS_A_STATEMENT = 100
"""On SQLite: a statement costs about as much as a row, so this many by one take half the time of one each."""

_CACHE_FOR_MUCH = -65_536
"""Pages in KiB, as SQLite wants it. Its usual 2 MB hold a few thousand rows: what belongs into an index at
random places is written out and read back over and over."""


def reserve_ids(model: type[models.Model], number: int) -> Sequence[int]:
    """Ids for `number` new rows. Call it inside the transaction that writes them."""
    table = model._meta.db_table
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "select nextval(pg_get_serial_sequence(%s, 'id')) from generate_series(1, %s)",
                [table, number],
            )
            return [pk for (pk,) in cursor.fetchall()]
        if connection.vendor == "sqlite":
            # The transaction holds SQLite's only write lock; explicit ids move the sequence along.
            cursor.execute("select seq from sqlite_sequence where name = %s", [table])
            row = cursor.fetchone()
            first = (row[0] if row else 0) + 1
            return range(first, first + number)
    raise NotSupportedError(f"Rondo runs on PostgreSQL and SQLite, not on {connection.vendor}.")


def insert(model: type[models.Model], names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows whose values are numbers, texts, None, or made by `json_value` and `time_value`.

    `names` are attribute names (`prompt_id`). No signal is sent and no default is filled in:
    every column without a default of the database's own must be named.
    """
    column_of = {field.attname: str(field.column) for field in model._meta.concrete_fields}
    quote = connection.ops.quote_name
    table = quote(model._meta.db_table)
    listed = ", ".join(quote(column_of[name]) for name in names)
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            with connection.wrap_database_errors, cursor.copy(f"COPY {table} ({listed}) FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
        else:
            # The database's own cursor, spoken to in its own way: Django's looks through the statement for
            # every place of every row.
            execute = cursor.connection.cursor().execute
            places = f"({', '.join(['?'] * len(names))})"
            into = f"INSERT INTO {table} ({listed}) VALUES "  # noqa: S608
            waiting = iter(rows)
            with connection.wrap_database_errors:
                while some := list(islice(waiting, _ROWS_A_STATEMENT)):
                    execute(into + ", ".join([places] * len(some)), list(chain.from_iterable(some)))


def update(model: type[models.Model], name: str, values: Iterable[tuple[int, Any]]) -> None:
    """Write one column of many rows, given as (id, value) with values as for `insert`."""
    quote = connection.ops.quote_name
    column = next(quote(str(field.column)) for field in model._meta.concrete_fields if field.name == name)
    statement = f"UPDATE {quote(model._meta.db_table)} SET {column} = %s WHERE id = %s"  # noqa: S608
    with connection.cursor() as cursor:
        cursor.executemany(statement, [(value, pk) for pk, value in values])


def insert_numbered(
    model: type[models.Model], names: Sequence[str], rows: Sequence[Sequence[Any]]
) -> Sequence[int]:
    """`insert` under ids that are reserved here and returned."""
    ids = reserve_ids(model, len(rows))
    insert(model, ["id", *names], ((pk, *row) for pk, row in zip(ids, rows, strict=True)))
    return ids


@contextmanager
def writing_much() -> Iterator[None]:
    """Room for an import: SQLite may keep more pages before it writes them, and the garbage collector does
    not look through what is built up, which holds no cycles. Begin it outside the transaction."""
    was_enabled = gc.isenabled()
    gc.disable()
    usual = _set_cache(_CACHE_FOR_MUCH)
    try:
        yield
    finally:
        if usual is not None:
            _set_cache(usual)
        if was_enabled:
            gc.enable()


def _set_cache(size: int) -> int | None:
    """Set SQLite's page cache, and give what it was; None elsewhere."""
    if connection.vendor != "sqlite":
        return None
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA cache_size")
        usual = int(cursor.fetchone()[0])
        cursor.execute(f"PRAGMA cache_size = {size:d}")
    return usual


def json_value(value: Any) -> str:
    """A value for a `JSONField`."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        # It spells no whole number beyond 64 bits, and no half of a surrogate pair.
        return json.dumps(value)


def uuid_value(value: uuid.UUID) -> str:
    """A value for a `UUIDField`."""
    return str(value) if connection.features.has_native_uuid_field else value.hex


def time_value(value: datetime) -> Any:
    """A value for a `DateTimeField`."""
    return connection.ops.adapt_datetimefield_value(value)
