"""A job from its claim to its end, whatever happens in between."""

import logging
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from typing import TypeVar

from django.conf import settings
from django.db import OperationalError, transaction
from django.db.models import QuerySet
from django.urls import reverse
from django.utils import timezone, translation
from django.utils.translation import gettext as _

from annotation.choices import JobState, NotificationKind
from annotation.errors import Refusal, Unavailable
from annotation.models.jobs import Claimable
from annotation.services.inbox import Event, notify_managers
from annotation.services.jobs import ClaimLostError, Heartbeat, WorkerStoppingError, claim, name_of, release

# Free space where Rondo keeps its files. Below the setting, what writes much waits; labelling goes on.


class DiskFull(Unavailable):
    """Too little of the disk is free for what would write much."""


def free_bytes() -> int | None:
    """Return the free bytes below RONDO_HOME; None if unknown."""
    try:
        return shutil.disk_usage(settings.RONDO_HOME).free
    except OSError:
        return None


def is_low() -> bool:
    """Return whether less is free than `RONDO_LEAST_FREE_MB` says."""
    free = free_bytes()
    return free is not None and free < settings.RONDO_LEAST_FREE_MB << 20


def sentence() -> str:
    """Return what waits for room, and how much there is."""
    return _(
        "The disk is nearly full: %(free)s MB are free, and uploads, sampling and training need "
        "%(least)s MB. They wait until there is room; labelling goes on."
    ) % {"free": (free_bytes() or 0) >> 20, "least": settings.RONDO_LEAST_FREE_MB}


def refuse_without_room() -> None:
    """Raise `DiskFull` where the disk is nearly full."""
    if is_low():
        raise DiskFull("disk_full", sentence())


logger = logging.getLogger(__name__)

EXPECTED = (Refusal, OSError)
"""Errors that fail a job in their own words; any other one is logged with its traceback, too."""

_POLL_SECONDS = 0.5

C = TypeVar("C", bound=Claimable)
T = TypeVar("T")


def run_job(
    jobs: QuerySet[C],
    pk: int,
    work: Callable[[C, Heartbeat], str],
    *,
    expected: tuple[type[Exception], ...] = EXPECTED,
    explain: Callable[[Exception], str] | None = None,
) -> C | None:
    """Claim one of `jobs` and do it; return it, or None where another worker has it or took it over.

    work: returns the message of a finished job. explain: words an error for people. Both speak the language
    of the person who asked for the job. The job waits again where this worker stops, the database does not
    answer, or `work` raises `Unavailable`; any other error fails it.
    """
    job = claim(jobs, pk)
    if job is None:
        return None
    with speaking_for(job):
        state, text = JobState.WAITING, "waiting for a worker"
        try:
            text = work(job, Heartbeat(job))
            state = JobState.FINISHED
        except ClaimLostError:
            return None
        except WorkerStoppingError:
            logger.info("%s: given back, because this worker ends", job)
        except OperationalError as error:
            # If it does not answer below either, whoever finds the job silent goes on with it.
            logger.warning("%s: the database did not answer (%s); given back", name_of(job), error)
        except Unavailable as error:
            logger.warning("%s waits: %s", job, error)
            text = str(error)
        except Exception as error:
            if not isinstance(error, expected):
                logger.exception("%s failed", job)
            known = str(error) if isinstance(error, expected) else f"{type(error).__name__}; see the log"
            state, text = JobState.FAILED, explain(error) if explain else known
        with suppress(ClaimLostError), transaction.atomic():
            release(job, **job.end_values(state, text))
            if state == JobState.FAILED:
                _tell_managers(job, text)
    return job


def speaking_for(job: Claimable) -> AbstractContextManager[None]:
    """Return a context in the language of the person who asked for a job: they read how it ends."""
    language = job.requester.language if job.requester else ""
    return translation.override(language or settings.LANGUAGE_CODE)


def _tell_managers(job: Claimable, error: str) -> None:
    """Put a failed job into the inboxes of its project's managers."""
    project = getattr(job, "project", None)
    if project is None:
        return
    event = Event(
        kind=NotificationKind.JOB_FAILED,
        key=f"job:{job._meta.label_lower}:{job.pk}:{timezone.now().isoformat()}",
        subject=str(job),
        excerpt=error,
        address=reverse(job.PAGE, args=[project.slug]),
    )
    notify_managers(project_id=project.pk, event=event)


def call_with_heartbeat(call: Callable[[], T], beat: Callable[[], object]) -> T:
    """Return what `call` returns. It runs on a thread; `beat` is called meanwhile, and may raise to stop."""
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="call")
    try:
        beat()
        return result_with_heartbeat(pool.submit(call), beat)
    finally:
        # A request that is on its way ends by itself; nobody waits for it.
        pool.shutdown(wait=False, cancel_futures=True)


def result_with_heartbeat(future: "Future[T]", beat: Callable[[], object]) -> T:
    """Return the result of a future; `beat` is called until it is there, and may raise to stop."""
    while True:
        beat()
        try:
            return future.result(timeout=_POLL_SECONDS)
        except TimeoutError:
            if future.done():
                raise
