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

from django.db.backends.sqlite3 import base


class DatabaseWrapper(base.DatabaseWrapper):
    """One thread's connection. The queue's lock is held from BEGIN to COMMIT or ROLLBACK."""

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
