"""Liveness of a run's folder: a working trainer, or one that was killed.

A trainer holds a lock on `lock` and touches that file every few seconds. The system releases the lock when
the trainer dies, so on the trainer's machine the lock decides. On another machine, where locks may not reach,
the time of the last touch does.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from training.contract.run import RunStatus, read_status

LOCK_FILE = "lock"
HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 60.0
"""A trainer on another machine that has not touched its lock for this long counts as dead."""

Liveness = Literal["waiting", "starting", "running", "interrupted", "finished", "stopped", "failed"]
"""`RunState`, `waiting` before the first start, and `interrupted`: unfinished, and no trainer works on it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LockHolder:
    """The trainer that last wrote the lock file."""

    pid: str
    host: str
    """Empty where an older version of Rondo wrote the file."""
    seen_at: float
    """Time of its last heartbeat, in seconds since the epoch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderReport:
    """The state of a run's folder, with live and dead trainers distinguished."""

    state: Liveness
    status: RunStatus | None
    holder: LockHolder | None

    @property
    def sentence(self) -> str:
        """Return the report in one line, the state first."""
        step = f"step {self.status.step} of {self.status.total_steps}" if self.status else "no step yet"
        if self.state == "interrupted":
            return (
                f"interrupted: {step}; no trainer works in this folder. It can be resumed: start it again to "
                "go on from the last saved step"
            )
        if self.state in ("starting", "running") and self.holder is not None:
            ago = max(0.0, time.time() - self.holder.seen_at)
            where = f" on {self.holder.host}" if self.holder.host else ""
            return f"{self.state}: {step}; process {self.holder.pid}{where}, last heartbeat {ago:.0f} s ago"
        message = f"; {self.status.message}" if self.status and self.status.message else ""
        return f"{self.state}: {step}{message}"


def lock_content() -> str:
    """Return the content of a trainer's lock: process and host, a line each."""
    return f"{os.getpid()}\n{socket.gethostname()}\n"


def read_holder(folder: Path) -> LockHolder | None:
    """Return the trainer that last locked the folder; None before the first."""
    path = folder / LOCK_FILE
    try:
        lines = path.read_text(encoding="utf-8").split()
        seen_at = path.stat().st_mtime
    except OSError:
        return None
    pid, host = (*lines, "", "")[:2]
    return LockHolder(pid=pid or "unknown", host=host, seen_at=seen_at) if lines else None


def has_trainer(folder: Path) -> bool:
    """Return whether a trainer works in the folder."""
    holder = read_holder(folder)
    if holder is None:
        return False
    if is_locked_here(folder):
        return True
    is_here = holder.host in ("", socket.gethostname())
    return not is_here and time.time() - holder.seen_at < STALE_SECONDS


def report_of(folder: Path) -> FolderReport:
    """Report on the run in a folder. Raises `ContractError` if `status.json` cannot be read."""
    status = read_status(folder)
    holder = read_holder(folder)
    if has_trainer(folder):
        state: Liveness = status.state if status and status.state in ("starting", "running") else "starting"
    elif status is None:
        state = "waiting" if holder is None else "interrupted"
    else:
        state = "interrupted" if status.state in ("starting", "running") else status.state
    return FolderReport(state=state, status=status, holder=holder)


def is_locked_here(folder: Path) -> bool:
    """Return whether a trainer of this machine holds the folder.

    Tries a shared lock, which fails exactly while a trainer holds the folder exclusively.
    """
    try:
        with (folder / LOCK_FILE).open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
