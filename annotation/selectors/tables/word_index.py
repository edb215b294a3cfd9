"""Word indexes of SQLite (FTS5): which rows hold a word that begins so. PostgreSQL has indexes of its own.

An index keeps words and row numbers, not the text. Triggers keep it up to date. Django builds a table anew
when a migration changes a column, and its triggers are lost: after every `migrate` they are looked for, and
an index whose triggers were lost is filled again. No text of a user is part of a statement here.
"""

# ruff: noqa: S608 - the names in the statements are those of WORD_INDEXES

from dataclasses import dataclass
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper


@dataclass(frozen=True)
class WordIndex:
    """The index of one column. is_json: the column holds a JSON value; its strings are the text."""

    table: str
    column: str
    is_json: bool = False

    @property
    def name(self) -> str:
        """The table of the index."""
        return f"{self.table}_{self.column}_words"

    def text_of(self, row: str) -> str:
        """Return the SQL of a row's text; `row` is "new", "old" or the table."""
        if self.is_json:
            strings = f"json_tree({row}.{self.column}) WHERE type = 'text'"
            return f"(SELECT group_concat(atom, char(10)) FROM {strings})"
        return f"{row}.{self.column}"


WORD_INDEXES = (
    WordIndex("annotation_prompt", "messages", is_json=True),
    WordIndex("annotation_completion", "text"),
    WordIndex("annotation_judgment", "comment"),
)


def index_of(connection: BaseDatabaseWrapper, table: str, column: str) -> WordIndex | None:
    """Return the index of a column; None where it has none, as in a SQLite that was built without FTS5."""
    for index in WORD_INDEXES:
        if (index.table, index.column) == (table, column):
            return index if _exists(connection, "table", index.name) else None
    return None


def ensure_word_indexes(*, using: str = DEFAULT_DB_ALIAS, **_signal: Any) -> None:
    """Make the indexes of SQLite and their triggers where they are missing, and fill them."""
    connection = connections[using]
    if connection.vendor != "sqlite" or not _has_fts5(connection):
        return
    for index in WORD_INDEXES:
        if _exists(connection, "table", index.table):
            _ensure(connection, index)


def _ensure(connection: BaseDatabaseWrapper, index: WordIndex) -> None:
    triggers = _triggers(index)
    if _exists(connection, "table", index.name) and all(
        _exists(connection, "trigger", name) for name in triggers
    ):
        return
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE VIRTUAL TABLE IF NOT EXISTS {index.name} USING fts5("
            "words, content='', prefix='2 3', tokenize='unicode61 remove_diacritics 0')"
        )
        for trigger in triggers.values():
            cursor.execute(trigger)
        cursor.execute(f"INSERT INTO {index.name}({index.name}) VALUES ('delete-all')")
        texts = f"SELECT id, {index.text_of(index.table)} FROM {index.table}"
        cursor.execute(f"INSERT INTO {index.name}(rowid, words) {texts}")


def _triggers(index: WordIndex) -> dict[str, str]:
    """Return the statements that make the triggers, by their names."""
    name, column = index.name, index.column
    add = f"INSERT INTO {name}(rowid, words) VALUES (new.id, {index.text_of('new')});"
    # An index without content removes the words that the statement names.
    remove = f"INSERT INTO {name}({name}, rowid, words) VALUES ('delete', old.id, {index.text_of('old')});"
    events = {
        "added": ("INSERT", add),
        "removed": ("DELETE", remove),
        "changed": (f"UPDATE OF {column}", remove + add),
    }
    return {
        f"{name}_{event}": f"CREATE TRIGGER IF NOT EXISTS {name}_{event} AFTER {when} ON {index.table} "
        f"BEGIN {statements} END"
        for event, (when, statements) in events.items()
    }


def _exists(connection: BaseDatabaseWrapper, kind: str, name: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM sqlite_master WHERE type = %s AND name = %s", [kind, name])
        return cursor.fetchone() is not None


def _has_fts5(connection: BaseDatabaseWrapper) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT sqlite_compileoption_used('ENABLE_FTS5')")
        return bool(cursor.fetchone()[0])
