"""Django's SQLite backend, with a queue before the write lock.

SQLite lets one transaction write at a time, and whoever comes second sleeps and looks again, up to
100 ms at a time, in no order. With eight people at work most of the waiting is sleep, and some wait
for seconds. Here every transaction first takes a lock on a file beside the database, for which the
kernel wakes the next one at once. SQLite's own lock stays the one that counts: a program that
knows nothing of the file (`sqlite3`, a backup) is as safe as before, it only does not queue.
"""

import fcntl
import os
from typing import Any

from django.db import transaction
from django.db.backends.sqlite3 import base, operations


class DatabaseOperations(operations.DatabaseOperations):
    """Django's, but for `manage.py flush`: it empties tables of which triggers keep every row.

    PostgreSQL truncates, and no trigger of rows hears of it; SQLite deletes row by row.
    """

    def execute_sql_flush(self, sql_list: Any) -> None:
        """Empty the tables with the triggers out of the way, and put them back, all in one transaction."""
        with transaction.atomic(using=self.connection.alias), self.connection.cursor() as cursor:
            cursor.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
            triggers = cursor.fetchall()
            for name, _ in triggers:
                cursor.execute(f"DROP TRIGGER {self.quote_name(name)}")
            super().execute_sql_flush(sql_list)
            for _, statement in triggers:
                cursor.execute(statement)


class DatabaseWrapper(base.DatabaseWrapper):
    """One thread's connection. The queue's lock is held from BEGIN to COMMIT or ROLLBACK."""

    ops_class = DatabaseOperations

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._queue: int | None = None
        self._process = 0
        self._in_turn = False

    def _start_transaction_under_autocommit(self) -> None:
        self._take_turn()
        try:
            super()._start_transaction_under_autocommit()  # type: ignore[misc]
        except BaseException:
            self._end_turn()
            raise

    def _commit(self) -> None:
        try:
            super()._commit()  # type: ignore[misc]
        finally:
            # A commit that failed leaves the transaction open; the rollback that follows ends the turn.
            if self.connection is None or not self.connection.in_transaction:
                self._end_turn()

    def _rollback(self) -> None:
        try:
            super()._rollback()  # type: ignore[misc]
        finally:
            self._end_turn()

    def _close(self) -> None:
        try:
            super()._close()  # type: ignore[misc]
        finally:
            self._end_turn()
            if self._queue is not None and self._process == os.getpid():
                os.close(self._queue)
            self._queue = None

    def _take_turn(self) -> None:
        path = self.settings_dict["NAME"]
        if self.is_in_memory_db() or self._in_turn:
            return
        # A forked child shares its parent's lock, and would end the parent's turn with its own.
        if self._queue is None or self._process != os.getpid():
            self._queue = os.open(f"{path}-queue", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._process = os.getpid()
        fcntl.flock(self._queue, fcntl.LOCK_EX)
        self._in_turn = True

    def _end_turn(self) -> None:
        if self._in_turn and self._queue is not None and self._process == os.getpid():
            fcntl.flock(self._queue, fcntl.LOCK_UN)
        self._in_turn = False
