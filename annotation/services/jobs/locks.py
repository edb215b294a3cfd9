"""Locks of one machine: one process at a time does what a database row does not claim."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings


@contextlib.contextmanager
def alone(kind: str, project_id: int) -> Iterator[bool]:
    """Yield True where no other process of the machine does this kind of work for the project.

    It saves work, no more: on another machine the same may run.
    """
    path = lock_file(kind, project_id)
    with path.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def lock_file(kind: str, project_id: int) -> Path:
    """Return the path of a lock, in a folder that exists."""
    path = Path(settings.RONDO_HOME) / kind / f"{project_id}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
