"""A measure of SQLite's write lock: how long this thread's transactions hold it."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from django.db import connection

from webapp.database.sqlite.base import DatabaseWrapper


@dataclass
class WriteLock:
    """Holds of the lock, one for each transaction and for each writing statement outside of one."""

    processor_seconds: list[float] = field(default_factory=list)
    """Processor time of this thread: the same on a busy machine as on a quiet one."""
    seconds: list[float] = field(default_factory=list)
    """Time on the clock, which shows what waits for something else while it holds the lock."""

    def note(self, begun: tuple[float, float]) -> None:
        self.processor_seconds.append(time.thread_time() - begun[0])
        self.seconds.append(time.perf_counter() - begun[1])


@contextmanager
def measured_write_lock() -> Iterator[WriteLock]:
    """Measure every hold by this thread. Each transaction holds the lock from BEGIN IMMEDIATE to its end.

    Nothing is collected meanwhile: after thousands of tests that takes this process a second or two.
    """
    lock = WriteLock()
    begun: list[tuple[float, float]] = []

    def begins(start: Callable[[Any], None]) -> Callable[[Any], None]:
        def wrapper(database: Any) -> None:
            start(database)
            begun.append(_now())

        return wrapper

    def ends(end: Callable[[Any], None]) -> Callable[[Any], None]:
        def wrapper(database: Any) -> None:
            end(database)
            if begun:
                lock.note(begun.pop())

        return wrapper

    def statement(execute: Any, sql: str, parameters: Any, many: bool, context: Any) -> Any:
        writes = sql.lstrip()[:6].upper() in ("INSERT", "UPDATE", "DELETE")
        if begun or not writes:
            return execute(sql, parameters, many, context)
        before = _now()
        try:
            return execute(sql, parameters, many, context)
        finally:
            lock.note(before)

    base: Any = DatabaseWrapper
    start = base._start_transaction_under_autocommit
    with (
        patch.object(base, "_start_transaction_under_autocommit", begins(start)),
        patch.object(base, "_commit", ends(base._commit)),
        patch.object(base, "_rollback", ends(base._rollback)),
        connection.execute_wrapper(statement),
        _uncollected(),
    ):
        yield lock


@contextmanager
def _uncollected() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _now() -> tuple[float, float]:
    return time.thread_time(), time.perf_counter()
