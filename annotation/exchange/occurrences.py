"""Counting more things than fit into memory: in a private file of SQLite's, gone when it is closed."""

import sqlite3
from types import TracebackType


class Occurrences:
    """Counts of the occurrences of many digests. Memory stays the same however many they are."""

    def __init__(self) -> None:
        # An empty name is a temporary database on disk, with a few megabytes of it in memory.
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute("CREATE TABLE seen (digest BLOB PRIMARY KEY, times INTEGER) WITHOUT ROWID")
        self._database.execute("BEGIN")

    def __enter__(self) -> "Occurrences":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def count(self, digest: bytes) -> int:
        """Return the number of occurrences of this digest, this one included."""
        return int(
            self._database.execute(
                "INSERT INTO seen VALUES (?, 1) ON CONFLICT (digest) DO UPDATE SET times = times + 1 "
                "RETURNING times",
                (digest,),
            ).fetchone()[0]
        )
