"""Indexes of full-text search of a new installation on PostgreSQL, whose tables are empty. SQLite has none."""

from importlib import import_module
from typing import Any

INDEXES: dict[str, tuple[str, str]] = import_module("annotation.migrations.0021_search_indexes").INDEXES


def add_search_indexes(apps: Any, schema_editor: Any) -> None:
    """Build them in the transaction that made the tables."""
    if schema_editor.connection.vendor == "postgresql":
        for name, (table, column) in INDEXES.items():
            schema_editor.execute(f"CREATE INDEX {name} ON {table} USING gin (to_tsvector('simple', {column}))")


def drop_search_indexes(apps: Any, schema_editor: Any) -> None:
    """Drop them."""
    if schema_editor.connection.vendor == "postgresql":
        for name in INDEXES:
            schema_editor.execute(f"DROP INDEX IF EXISTS {name}")
