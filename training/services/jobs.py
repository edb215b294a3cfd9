"""Background jobs: claimed, held and ended. Every write is a guarded UPDATE; the row is the truth."""

import logging
import os
import socket
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from django.conf import settings
from django.db import OperationalError as DatabaseAwayError
from django.db import close_old_connections, connection, transaction
from django.db.models import Model, Q, QuerySet
from django.db.models.functions import Coalesce, Now

from annotation.errors import Refusal
from training.choices import JobState
from training.doorbell import DO_JOB, send
from training.engine import EngineError
from training.files import StoreAway
from training.models import CheckpointExport, DriftMeasurement, Judge
from training.services.claims import SURE_OF_A_CLAIM, worker_is_stopping

logger = logging.getLogger(__name__)

Job = TypeVar("Job", CheckpointExport, DriftMeasurement, Judge)
KINDS: dict[str, type[CheckpointExport] | type[DriftMeasurement]] = {
    "export": CheckpointExport,
    "drift": DriftMeasurement,
}
"""Every kind of job by the word that a message to the workers bears."""


class JobLostError(Exception):
    """Someone else holds the job now: stop at once and write nothing."""


class JobInterruptedError(Exception):
    """This worker is told to end; the job goes back to waiting."""


class JobPulse:
    """The holder's end of a claim: heartbeat and progress. Call it often; it writes when that is due.

    Raises `JobLostError` and `JobInterruptedError`.
    """

    def __init__(self, job: CheckpointExport | DriftMeasurement | Judge) -> None:
        self.job = job
        self._interval = min(1.0, settings.RONDO_HEARTBEAT_SECONDS)
        self._written_at = time.monotonic()
        self._pending: dict[str, object] = {}

    def __call__(
        self, *, current: int | None = None, total: int | None = None, message: str | None = None
    ) -> None:
        """Take note of progress, and write it where the last time is long enough ago."""
        news = {"current": current, "total": total, "message": message}
        self._pending |= {name: value for name, value in news.items() if value is not None}
        if worker_is_stopping.is_set():
            raise JobInterruptedError
        if time.monotonic() - self._written_at >= self._interval:
            self._write()

    def _write(self) -> None:
        """Write now; a database that is away for a moment is asked again later."""
        try:
            if not connection.in_atomic_block:
                close_old_connections()
            held = _held(self.job).update(heartbeat_at=Now(), **self._pending)
        except DatabaseAwayError:
            if time.monotonic() - self._written_at > settings.RONDO_STALE_SECONDS * SURE_OF_A_CLAIM:
                raise
            return
        if not held:
            raise JobLostError
        self._written_at, self._pending = time.monotonic(), {}


def ring_for_job(job: CheckpointExport | DriftMeasurement) -> None:
    """Once this transaction is committed, tell a worker of the job."""
    kind = next(word for word, model in KINDS.items() if isinstance(job, model))
    transaction.on_commit(lambda: send(DO_JOB, kind, job.pk))


def sweep_jobs() -> None:
    """Ring for every job that waits, or whose worker has been silent for `RONDO_STALE_SECONDS`."""
    for kind, model in KINDS.items():
        for pk in model.objects.filter(free_to_claim()).values_list("pk", flat=True):
            send(DO_JOB, kind, pk)


def carry_out(job_model: type[Job], pk: int, work: Callable[[Job, JobPulse], str]) -> bool:
    """Claim a job and do it; whether it was this worker that did. What comes of it stands in the row.

    `work` returns what to say at the end. A `Refusal`, an `EngineError` or an `OSError` fails the job in its
    own words; anything else fails it too, and is logged. Where the shared store is away, the job waits.
    """
    job = _claim(job_model, pk)
    if job is None:
        return False
    try:
        message = work(job, JobPulse(job))
    except JobLostError:
        return False
    except JobInterruptedError:
        _end(job, state=JobState.WAITING, message="waiting for a worker")
    except StoreAway as away:
        _end(job, state=JobState.WAITING, message=str(away))
    except DatabaseAwayError as away:
        # If it is still away now, whoever finds the job silent goes on with it.
        logger.warning("%s: the database did not answer (%s); given back", job, away)
        _end(job, state=JobState.WAITING, message="waiting for a worker")
    except (Refusal, EngineError, OSError) as error:
        _end(job, state=JobState.FAILED, error=str(error), finished_at=Now())
    except Exception as error:
        logger.exception("%s failed", job)
        _end(job, state=JobState.FAILED, error=f"{type(error).__name__}; see the log", finished_at=Now())
    else:
        _end(job, state=JobState.FINISHED, message=message, error="", finished_at=Now())
    return True


def _claim(job_model: type[Job], pk: int) -> Job | None:
    worker = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:12]}"
    rows: QuerySet[Job] = job_model.objects.filter(pk=pk)
    taken = rows.filter(free_to_claim()).update(
        state=JobState.RUNNING,
        worker=worker,
        heartbeat_at=Now(),
        started_at=Coalesce("started_at", Now()),
        current=0,
        error="",
    )
    return rows.get() if taken else None


def free_to_claim() -> Q:
    """Jobs that wait, and those whose worker has been silent for `RONDO_STALE_SECONDS`."""
    silent_since = Now() - timedelta(seconds=settings.RONDO_STALE_SECONDS)
    return Q(state=JobState.WAITING) | Q(state=JobState.RUNNING, heartbeat_at__lt=silent_since)


def _held(job: Model) -> "QuerySet[Model]":
    worker: str = job.worker  # type: ignore[attr-defined]
    return type(job)._default_manager.filter(pk=job.pk, worker=worker, state=JobState.RUNNING)


def _end(job: Model, **values: object) -> None:
    """Let go of a job; nothing where another worker has taken it."""
    _held(job).update(worker="", heartbeat_at=None, **values)
