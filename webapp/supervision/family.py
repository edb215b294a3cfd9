"""One `up` per folder, without leftovers: a lock, and a record of all started processes."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

# The base error of `manage.py up`.


class UpError(Exception):
    """`up` cannot continue. The message says what is wrong, where, and the remedy."""


# ── Family ──

# Readings of a start time may differ this much if the clock was set in between.
_SAME_START_SECONDS = 2.0


class AlreadyRunningError(UpError):
    """Another `up` holds this folder. The message names its address and how to stop it."""


@contextmanager
def only_one(home: Path) -> Iterator[None]:
    """Lock the folder for this `up`. The lock ends with the process, even if it is killed."""
    with (home / "up.lock").open("a+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            raise AlreadyRunningError(_who_runs(stream.read(), home)) from None
        stream.truncate(0)
        yield
        stream.truncate(0)


def say_where(home: Path, address: str) -> None:
    """Record address and process id, for an `up` that finds the folder locked."""
    (home / "up.lock").write_text(json.dumps({"pid": os.getpid(), "address": address}))


def _who_runs(text: str, home: Path) -> str:
    try:
        there = json.loads(text)
        return (
            f"Rondo already runs on {home}: {there['address']} (process {there['pid']}). "
            f"Stop it with Ctrl-C where it runs, or with `kill {there['pid']}`."
        )
    except (ValueError, KeyError, TypeError):
        return f"Rondo is just being started on {home} by somebody else. Wait for it, or stop it."


@dataclass(frozen=True)
class Member:
    """A process, identified by its id and its start time."""

    pid: int
    began: float

    def process(self) -> psutil.Process | None:
        """Return the process; None if it has ended, even if its id was reused."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.began) < _SAME_START_SECONDS
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None


class Family:
    """All descendants of the process manager, including orphans.

    Recorded in `up.json`, so that the next `up` finds what an `up` killed with SIGKILL left behind.
    """

    def __init__(self, home: Path) -> None:
        self._record = home / "up.json"
        self._members: set[Member] = set()

    def look(self, root: int) -> None:
        """Add the processes below `root`, drop ended ones, write the record if it changed."""
        now = {member for member in self._members if member.process()}
        try:
            process = psutil.Process(root)
            for child in [process, *process.children(recursive=True)]:
                try:
                    now.add(Member(child.pid, child.create_time()))
                except psutil.NoSuchProcess:
                    continue
        except psutil.NoSuchProcess:
            pass
        if now != self._members:
            self._members = now
            # On a full disk the record stays as it was, and the next change writes it.
            with suppress(OSError):
                draft = self._record.with_suffix(".draft")
                draft.write_text(json.dumps([[member.pid, member.began] for member in now]))
                os.replace(draft, self._record)

    def recall(self) -> None:
        """Load the record of an earlier `up`."""
        try:
            self._members = {
                Member(int(pid), float(began)) for pid, began in json.loads(self._record.read_text())
            }
        except (OSError, ValueError):
            self._members = set()

    def end(self, seconds: float) -> int:
        """End all living members, by SIGTERM and after `seconds` by SIGKILL. Return how many."""
        alive = [process for member in self._members if (process := member.process())]
        for process in alive:
            _signal(process, gently=True)
        _, stubborn = psutil.wait_procs(alive, timeout=seconds)
        for process in stubborn:
            _signal(process, gently=False)
        psutil.wait_procs(stubborn, timeout=5)
        self._members = set()
        self._record.unlink(missing_ok=True)
        return len(alive)


def _signal(process: psutil.Process, *, gently: bool) -> None:
    try:
        process.terminate() if gently else process.kill()
    except psutil.NoSuchProcess:
        return
