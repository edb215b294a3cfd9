"""Heartbeat of a round's step, and the requests that stop it."""

import time

from django.db.models import F

from annotation.services.jobs import disk_space
from annotation.services.jobs.claims import Heartbeat, write
from training.choices import StepKind
from training.models import Round, RoundStep


class StopAskedError(Exception):
    """The round is to stop here: what is done is saved, and the step can be taken up again."""


class CancelledError(StopAskedError):
    """A person cancelled the round."""


class PausedError(StopAskedError):
    """A person paused the round; it goes on exactly here."""


class BudgetSpentError(StopAskedError):
    """The round trained for as long as its recipe allows."""


class NoRoomError(StopAskedError):
    """The disk is nearly full; the step goes on exactly here once there is room."""


class InterruptedStepError(Exception):
    """The step was interrupted from outside and can go on: it goes back to waiting."""


class StepHeartbeat(Heartbeat):
    """The heartbeat of a step, which also brings news of a pause or a cancel.

    Raises a `StopAskedError`, too, whenever it writes until the step ends. `seconds_left` is what the
    round's budget leaves for this step; None sets no limit.
    """

    job: RoundStep

    def __init__(self, step: RoundStep, *, seconds_left: float | None = None) -> None:
        super().__init__(step)
        self._ends_at = None if seconds_left is None else time.monotonic() + seconds_left

    def _write(self, progress: dict[str, object]) -> None:
        worked = F("seconds_worked") + (time.monotonic() - self._written_at)
        write(self.job, seconds_worked=worked, **progress)

    def _check(self) -> None:
        rounds = Round.objects.filter(pk=self.job.round_id)
        cancelled, paused = rounds.values_list("cancel_requested", "pause_requested").get()
        if cancelled:
            raise CancelledError
        if paused:
            raise PausedError
        if self._ends_at is not None and time.monotonic() > self._ends_at:
            raise BudgetSpentError
        if self.job.kind != StepKind.DECIDE and disk_space.is_low():
            raise NoRoomError(disk_space.sentence())
