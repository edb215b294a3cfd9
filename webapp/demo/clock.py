"""A clock that the demo project sets, so that its weeks of work can be written within a minute."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from django.utils import timezone


class Clock:
    """A time that moves only when somebody moves it."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def forward(self, **parts: float) -> None:
        """Move on by the parts of a `timedelta`."""
        self.now += timedelta(**parts)

    @contextmanager
    def in_charge(self) -> Iterator[None]:
        """Let this process's services write this time in place of the real one.

        The services ask `timezone.now`, and no other process works on the incomplete project meanwhile. Times
        that the database writes itself stay real: `project` moves them afterwards.
        """
        real = timezone.now
        timezone.now = lambda: self.now
        try:
            yield
        finally:
            timezone.now = real
