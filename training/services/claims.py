"""Who does a step: taking it, holding it, letting it go. Every write is a guarded UPDATE."""

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from django.conf import settings
from django.db import OperationalError, close_old_connections, connection, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Coalesce, Now

from training.choices import StepState
from training.models import Round, RoundStep

logger = logging.getLogger(__name__)

worker_is_stopping = threading.Event()
"""Set when this process was told to end: what it holds is given back for another to go on with."""


SURE_OF_A_CLAIM = 0.5
"""For this share of RONDO_STALE_SECONDS a worker whose database does not answer goes on with a step."""


class ClaimLostError(Exception):
    """Someone else holds the step now: stop at once and write nothing."""


class StopAskedError(Exception):
    """The round is to stop here: what is done is saved, and the step can be taken up again."""


class CancelledError(StopAskedError):
    """A person cancelled the round."""


class PausedError(StopAskedError):
    """A person paused the round; it goes on exactly here."""


class BudgetSpentError(StopAskedError):
    """The round trained for as long as its recipe allows."""


class InterruptedStepError(Exception):
    """The step was interrupted from outside and can go on: it goes back to waiting."""


class WorkerStoppingError(Exception):
    """This worker is told to end; the step goes back to waiting."""


class Pulse:
    """The holder's end of a claim on one step: heartbeat, progress, and news of a pause or a cancel.

    Call it often; it writes when progress is due. Raises `ClaimLostError`,
    `WorkerStoppingError` or a `StopAskedError`, the last whenever it writes until the step ends.
    `seconds_left` is what the round's budget leaves for this step; None sets no limit.
    """

    def __init__(self, step: RoundStep, *, seconds_left: float | None = None) -> None:
        self.step = step
        self._ends_at = None if seconds_left is None else time.monotonic() + seconds_left
        self._interval = min(1.0, settings.RONDO_HEARTBEAT_SECONDS)
        self._written_at = time.monotonic()
        self._pending: dict[str, object] = {}

    def __call__(
        self, *, current: int | None = None, total: int | None = None, message: str | None = None
    ) -> bool:
        """Take note of progress; return whether it was written now."""
        news = {"current": current, "total": total, "message": message}
        self._pending |= {name: value for name, value in news.items() if value is not None}
        if worker_is_stopping.is_set():
            raise WorkerStoppingError
        if time.monotonic() - self._written_at < self._interval:
            return False
        return self.write()

    def write(self) -> bool:
        """Write heartbeat and progress now; a database that is busy for a moment is asked again later."""
        try:
            if not connection.in_atomic_block:
                # A step lasts longer than a connection may: one that is old or broken is made anew.
                close_old_connections()
            worked = F("seconds_worked") + (time.monotonic() - self._written_at)
            held = _held(self.step).update(heartbeat_at=Now(), seconds_worked=worked, **self._pending)
            asked = held and Round.objects.values_list("cancel_requested", "pause_requested").get(
                pk=self.step.round_id
            )
        except OperationalError:
            # Before others may take the step: this worker must have let go of it by then.
            if time.monotonic() - self._written_at > settings.RONDO_STALE_SECONDS * SURE_OF_A_CLAIM:
                raise
            logger.warning("%s: the database did not take a heartbeat; trying again", self.step)
            return False
        self._written_at = time.monotonic()
        self._pending = {}
        if not asked:
            raise ClaimLostError
        cancelled, paused = asked
        if cancelled:
            raise CancelledError
        if paused:
            raise PausedError
        if self._ends_at is not None and time.monotonic() > self._ends_at:
            raise BudgetSpentError
        return True


@contextmanager
def still_held(step: RoundStep) -> Iterator[None]:
    """A transaction in which a claim stands: until its end nobody else takes the step.

    For what a step writes beside its own row. A worker that was cut off or stood still, and comes back when
    another has taken its step, writes nothing over what that one did: raises `ClaimLostError`.
    """
    with transaction.atomic():
        # An UPDATE and no mere look: it holds the row.
        if not _held(step).update(heartbeat_at=Now()):
            raise ClaimLostError
        yield


def claim_step(step_id: int) -> RoundStep | None:
    """Take a step that waits, or whose worker has been silent for `RONDO_STALE_SECONDS`.

    Of any number that try at once, one gets it; the others get None.
    """
    worker = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:12]}"
    taken = (
        RoundStep.objects.filter(pk=step_id)
        .filter(free_to_claim())
        .update(
            state=StepState.RUNNING,
            worker=worker,
            heartbeat_at=Now(),
            started_at=Coalesce("started_at", Now()),
            error="",
        )
    )
    if not taken:
        return None
    return RoundStep.objects.select_related("round__project", "round__policy", "run").get(pk=step_id)


def free_to_claim() -> Q:
    """Steps that wait, or run under a worker that has gone silent."""
    silent_since = Now() - timedelta(seconds=settings.RONDO_STALE_SECONDS)
    return Q(state=StepState.WAITING) | Q(state=StepState.RUNNING, heartbeat_at__lt=silent_since)


def finish_step(step: RoundStep, *, message: str) -> None:
    """The step is done. Raises `ClaimLostError` where it is no longer held."""
    _end(step, StepState.FINISHED, message=message, current=F("total"), finished_at=Now())


def fail_step(step: RoundStep, *, error: str) -> None:
    """The step cannot be done; `error` says why and what to do."""
    _end(step, StepState.FAILED, error=error, finished_at=Now())


def cancel_step(step: RoundStep, *, message: str) -> None:
    """A person stopped the step."""
    _end(step, StepState.CANCELLED, message=message, finished_at=Now())


def release_step(step: RoundStep, *, message: str = "waiting for a worker") -> None:
    """Give the step back unfinished: the next worker that looks goes on with it."""
    _end(step, StepState.WAITING, message=message)


def _end(step: RoundStep, state: StepState, **values: object) -> None:
    if not _held(step).update(state=state, worker="", heartbeat_at=None, **values):
        raise ClaimLostError


def _held(step: RoundStep) -> QuerySet[RoundStep]:
    return RoundStep.objects.filter(pk=step.pk, worker=step.worker, state=StepState.RUNNING)
