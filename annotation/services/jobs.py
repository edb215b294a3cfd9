"""Background jobs: the database row is the truth, a broker message only wakes a worker."""

import contextlib
import fcntl
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from amqp.exceptions import AMQPError
from celery import current_app
from django.conf import settings
from django.db import OperationalError, close_old_connections, connection, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from kombu.exceptions import KombuError
from kombu.exceptions import OperationalError as BrokerError

from annotation.models.jobs import Claimable, Job
from annotation.selectors.jobs import project_is_full

# Claims: exclusive ownership of a job by one worker. Every write is a guarded UPDATE.

# Locks of one machine: one process at a time does what a database row does not claim.


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


logger = logging.getLogger(__name__)

worker_is_stopping = threading.Event()
"""Set when this process is to end: it gives its jobs back for another to continue."""

PROJECT_IS_FULL = "waits: the project has as many jobs at work as it may (RONDO_JOBS_PER_PROJECT)"

MAX_SILENT_SHARE = 0.5
"""For this share of `RONDO_STALE_SECONDS` a worker whose database does not answer goes on with a job."""

C = TypeVar("C", bound=Claimable)


class ClaimLostError(Exception):
    """Another worker holds the job now: stop at once and write nothing."""


class WorkerStoppingError(Exception):
    """This worker is to end; the job goes back to waiting."""


def worker_name() -> str:
    """Return a new name for a worker: host, process and a mark of its own."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:12]}"


def claimable(jobs: QuerySet[C]) -> QuerySet[C]:
    """Return those of `jobs` that nobody works on: unclaimed, or claimed by a worker that is silent.

    A worker is taken for dead after `RONDO_STALE_SECONDS`, by the clock of the database. A heartbeat as far
    in the future is from before the clock was set back: a live worker has written another one since.
    """
    stale = max(settings.RONDO_STALE_SECONDS, jobs.model.MIN_STALE_SECONDS)
    silent = Q(heartbeat_at__lt=Now() - timedelta(seconds=stale))
    silent |= Q(heartbeat_at__gt=Now() + timedelta(seconds=stale))
    return jobs.filter(jobs.model.UNFINISHED, Q(worker="") | silent)


def claim(jobs: QuerySet[C], pk: int) -> C | None:
    """Claim one of `jobs`. Of any number of workers that try at once, one gets it; the others get None.

    None, too, where the project has as many jobs at work as it may: a sweep sends another message.
    """
    if project_is_full(jobs.model, pk):
        if issubclass(jobs.model, Job):
            claimable(jobs).filter(pk=pk).exclude(message=PROJECT_IS_FULL).update(message=PROJECT_IS_FULL)
        return None
    name = worker_name()
    begun = jobs.model.claim_values()
    if not claimable(jobs).filter(pk=pk).update(worker=name, heartbeat_at=Now(), **begun):
        return None
    return jobs.filter(pk=pk, worker=name).first()


def held(job: C) -> QuerySet[C]:
    """Return the row of a job as long as the claim stands, else nothing."""
    return type(job)._default_manager.filter(pk=job.pk, worker=job.worker).exclude(worker="")


def write(job: Claimable, **values: object) -> None:
    """Write columns of a job with a heartbeat. Raises `ClaimLostError`."""
    if not held(job).update(**{"heartbeat_at": Now(), **values}):
        raise ClaimLostError


def release(job: Claimable, **values: object) -> None:
    """Give up the claim, and write `values` in the same UPDATE. Raises `ClaimLostError`."""
    write(job, worker="", heartbeat_at=None, **values)


@contextmanager
def still_held(job: Claimable) -> Iterator[None]:
    """Open a transaction in which a claim stands: until its end nobody else takes the job.

    For rows that a job writes besides its own. Raises `ClaimLostError`.
    """
    with transaction.atomic():
        # An UPDATE, not a SELECT: it locks the row.
        write(job)
        yield


def name_of(job: Claimable) -> str:
    """Return the name of a job for the log; unlike `str`, it asks no database."""
    return f"{type(job).__name__} {job.pk}"


class Heartbeat:
    """Sign of life and progress of the worker that holds a claim. Call it often; it writes when that is due.

    Raises `ClaimLostError` and `WorkerStoppingError`.
    """

    def __init__(self, job: Claimable) -> None:
        self.job = job
        self._interval = min(1.0, settings.RONDO_HEARTBEAT_SECONDS)
        self._written_at = time.monotonic()
        self._pending: dict[str, object] = {}

    def __call__(
        self, *, current: int | None = None, total: int | None = None, message: str | None = None
    ) -> bool:
        """Take note of progress; return whether it was written now."""
        progress = {"current": current, "total": total, "message": message}
        self._pending |= {name: value for name, value in progress.items() if value is not None}
        if worker_is_stopping.is_set():
            raise WorkerStoppingError
        if time.monotonic() - self._written_at < self._interval:
            return False
        return self.write()

    def write(self) -> bool:
        """Write now; a database that does not answer for a moment is asked again with the next heartbeat."""
        try:
            if not connection.in_atomic_block:
                # A job lasts longer than a connection may: one that is old or broken is replaced.
                close_old_connections()
            self._write(self._pending)
            self._written_at, self._pending = time.monotonic(), {}
            self._check()
        except OperationalError:
            # Before others may take the job: this worker must have let go of it by then.
            if time.monotonic() - self._written_at > settings.RONDO_STALE_SECONDS * MAX_SILENT_SHARE:
                raise
            logger.warning("%s: the database took no heartbeat; trying again", name_of(self.job))
            return False
        return True

    def _write(self, progress: dict[str, object]) -> None:
        write(self.job, **progress)

    def _check(self) -> None:
        """Raise where the job is to stop; for kinds of jobs that people can stop."""


# Messages that wake workers. The work stands in the database, so a lost message costs a few seconds.

_QUIET_SECONDS = 5.0
"""After a broker did not answer, no message is sent for so long: a request must not wait for it each time."""
_quiet_until = 0.0
_SWEEPS_BEFORE_EXPIRY = 3
"""A message of a sweep that no worker took by then is dropped: later sweeps have sent others."""
_withheld = False


@contextmanager
def no_messages() -> Iterator[None]:
    """Send nothing from this process meanwhile: it does all the work on its rows by itself."""
    global _withheld
    before, _withheld = _withheld, True
    try:
        yield
    finally:
        _withheld = before


def send(task: str, *args: object, expires: float | None = None) -> bool:
    """Send a task to the workers, and return True if the broker took it.

    A broker that is down is no failure: the sweep finds the row. expires: seconds after which a message that
    no worker took is dropped.
    """
    global _quiet_until
    if _withheld or time.monotonic() < _quiet_until:
        return False
    try:
        current_app.send_task(str(task), args=list(args), expires=expires)
    except (BrokerError, KombuError, AMQPError, OSError) as error:
        _quiet_until = time.monotonic() + _QUIET_SECONDS
        logger.warning("%s%s: no message to the workers (%s); a sweep sends it again.", task, args, error)
        return False
    return True


def send_after_commit(task: str, *args: object) -> None:
    """Send a task once this transaction is committed."""
    transaction.on_commit(lambda: send(task, *args))


def sweep(jobs: "QuerySet[Claimable]", task: str, *args: object) -> None:
    """Send a task for each of `jobs` that nobody works on: a message was lost, or a worker died."""
    for pk in claimable(jobs).values_list("pk", flat=True):
        send(task, *args, pk, expires=settings.RONDO_SWEEP_SECONDS * _SWEEPS_BEFORE_EXPIRY)
