"""Django's SQLite backend, with a queue before the write lock.

SQLite allows one write transaction at a time; a second writer sleeps and retries, up to 100 ms at a time, in
no order. With eight people at work, sleep dominates and some wait for seconds. Here every transaction first
locks a file next to the database, for which the kernel wakes the next waiter at once. SQLite's own lock
remains the one that protects the data: a program that does not use the file (`sqlite3`, a back-up) is as safe
as before, but does not queue.
"""

import fcntl
import os
from typing import Any

from django.db import transaction
from django.db.backends.sqlite3 import base, operations


class DatabaseOperations(operations.DatabaseOperations):
    """Django's operations, except `manage.py flush`: it empties tables whose triggers forbid deletion.

    PostgreSQL truncates, which fires no row triggers; SQLite deletes row by row.
    """

    def execute_sql_flush(self, sql_list: Any) -> None:
        """Drop the triggers, empty the tables and recreate the triggers, in one transaction."""
        with transaction.atomic(using=self.connection.alias), self.connection.cursor() as cursor:
            cursor.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
            triggers = cursor.fetchall()
            for name, _ in triggers:
                cursor.execute(f"DROP TRIGGER {self.quote_name(name)}")
            super().execute_sql_flush(sql_list)
            for _, statement in triggers:
                cursor.execute(statement)


class DatabaseWrapper(base.DatabaseWrapper):
    """One thread's connection. Holds the queue's lock from BEGIN to COMMIT or ROLLBACK."""

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
            # A failed commit leaves the transaction open; the following rollback releases the lock.
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
        # A forked child shares its parent's lock, and would release it with its own.
        if self._queue is None or self._process != os.getpid():
            self._queue = os.open(f"{path}-queue", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._process = os.getpid()
        fcntl.flock(self._queue, fcntl.LOCK_EX)
        self._in_turn = True

    def _end_turn(self) -> None:
        if self._in_turn and self._queue is not None and self._process == os.getpid():
            fcntl.flock(self._queue, fcntl.LOCK_UN)
        self._in_turn = False
