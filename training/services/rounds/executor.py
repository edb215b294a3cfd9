"""Workers do the steps of rounds: one at a time, each by whoever claims it, any of them again."""

import logging

from django.db import OperationalError, transaction
from django.db.models import Exists, F, OuterRef, Q, Sum
from django.db.models.functions import Now
from django.utils import timezone

from annotation.choices import NotificationKind
from annotation.errors import Refusal, Unavailable
from annotation.services import audit
from annotation.services.jobs.claims import ClaimLostError, WorkerStoppingError, claim, claimable, release
from annotation.services.jobs.messages import send
from annotation.services.jobs.running import speaking_for
from training.choices import CAN_START, TRAINS, RoundState, StepKind, StepState, TaskName
from training.contract import ContractError
from training.models import Round, RoundStep
from training.services.jobs.events import tell_managers_of_round
from training.services.jobs.step_heartbeat import (
    BudgetSpentError,
    CancelledError,
    InterruptedStepError,
    NoRoomError,
    PausedError,
    StepHeartbeat,
)
from training.services.rounds.controls import settle_cancel, settle_pause, settle_requests
from training.services.rounds.steps import do_step
from training.services.rounds.transitions import IN_PROGRESS, enter, move
from training.services.rounds.triggers import settle_decisions, start_due_rounds

logger = logging.getLogger(__name__)

_COST_HOURS = (
    StepKind.FREEZE_SNAPSHOT,
    StepKind.TRAIN_REWARD_MODEL,
    StepKind.TRAIN_EVALUATOR,
    StepKind.TRAIN_POLICY,
    StepKind.REGISTER_CHECKPOINTS,
)
"""Steps that a recipe's budget of hours covers."""


def advance_round(round_id: int) -> None:
    """Do whatever of a round can be done now, step after step, until something stops it.

    Safe to call at any time, from anywhere, twice at once: a step is done by who claims it.
    """
    while step_id := _next_step(round_id):
        step = claim_step(step_id)
        if step is None:
            return
        with speaking_for(step):
            may_go_on = _carry_out(step)
        if not may_go_on:
            return
    settle_requests(round_id)
    settle_decisions(round_id)


def claim_step(step_id: int) -> RoundStep | None:
    """Claim a step, with its round as it is now."""
    related = ("round__project", "round__policy", "round__started_by", "round__created_by", "run")
    return claim(RoundStep.objects.select_related(*related), step_id)


def rounds_with_work() -> list[int]:
    """Return the rounds with a step that waits or whose worker has gone silent.

    Those of an incomplete project are left to the process that writes it.
    """
    unfinished = RoundStep.objects.exclude(state=StepState.FINISHED).filter(position__gt=0)
    before = unfinished.filter(round=OuterRef("round"), position__lt=OuterRef("position"))
    active = Q(round__state__in=TRAINS, position__gt=0) | Q(round__state__in=CAN_START, position=0)
    steps = RoundStep.objects.filter(~Exists(before), active, round__project__is_incomplete=False)
    next_steps = claimable(steps)
    return sorted(set(next_steps.values_list("round_id", flat=True)))


def sweep() -> None:
    """Look for what nobody does: lost messages, dead workers, rounds that are due, open decisions."""
    settle_requests()
    start_due_rounds()
    settle_decisions()
    for round_id in rounds_with_work():
        send(TaskName.ADVANCE_ROUND, round_id)


def _carry_out(step: RoundStep) -> bool:
    """Do a claimed step; return True if the round may go on to the next one."""
    logger.info("%s: begins", step)
    try:
        try:
            if not enter(step):
                _give_back(step)
                return False
            heartbeat = StepHeartbeat(step, seconds_left=_seconds_left(step))
            heartbeat.write()
            outcome = do_step(step, heartbeat)
            release(step, **step.end_values(StepState.FINISHED, outcome), current=F("total"))
        except ClaimLostError:
            raise
        except Exception as error:
            _end_early(step, error)
            return False
    except ClaimLostError:
        logger.warning("%s: someone else has it now", step)
        return False
    logger.info("%s: finished, %s", step, outcome)
    return True


def _end_early(step: RoundStep, error: Exception) -> None:
    """Write down what it means for a step and its round that this ended it; called while it is handled."""
    match error:
        case CancelledError():
            _cancelled(step)
        case PausedError():
            _paused(step)
        case BudgetSpentError():
            _out_of_budget(step)
        case NoRoomError():
            logger.warning("%s: given back, because the disk is nearly full", step)
            _give_back(step, str(error))
        case WorkerStoppingError():
            logger.info("%s: given back, because this worker ends", step)
            _give_back(step)
        case InterruptedStepError():
            logger.warning("%s: given back, because %s", step, error)
            _give_back(step)
        case OperationalError():
            logger.exception("%s: the database did not answer; given back", step)
            _give_back(step)
        case Unavailable():
            logger.warning("%s: given back, because %s", step, error)
            _give_back(step, str(error))
        case Refusal() | ContractError():
            _failed(step, str(error))
        case _:
            logger.exception("%s: failed", step)
            _failed(step, f"Something went wrong that nobody foresaw ({error!r}). The worker's log has more.")


def _give_back(step: RoundStep, message: str = "waiting for a worker") -> None:
    release(step, **step.end_values(StepState.WAITING, message))


def _seconds_left(step: RoundStep) -> float | None:
    """Return the rest of the recipe's budget of hours; None where it sets none."""
    hours = step.round.parsed_recipe.budget.hours
    if hours is None or StepKind(step.kind) not in _COST_HOURS:
        return None
    steps = RoundStep.objects.filter(round=step.round_id, kind__in=_COST_HOURS)
    return 3600 * hours - float(steps.aggregate(worked=Sum("seconds_worked"))["worked"] or 0.0)


def _cancelled(step: RoundStep) -> None:
    with transaction.atomic():
        release(step, **step.end_values(StepState.CANCELLED, "cancelled; start again to go on where it was"))
        settle_cancel(step.round)


def _paused(step: RoundStep) -> None:
    logger.info("%s: paused", step)
    with transaction.atomic():
        _give_back(step, "paused; it goes on where it was")
        settle_pause(step.round)


def _out_of_budget(step: RoundStep) -> None:
    hours = step.round.parsed_recipe.budget.hours
    reason = f"its budget of {hours:g} hours is spent; start again to go on for as long once more"
    logger.warning("%s: %s", step, reason)
    with transaction.atomic():
        release(step, **step.end_values(StepState.CANCELLED, reason))
        settle_cancel(step.round)
        audit.record(
            action="round.cancel",
            subject=step.round,
            project=step.round.project,
            details={"reason": reason},
        )


def _failed(step: RoundStep, error: str) -> None:
    """Fail the round with its step, unless people label already: they can go on without the rest."""
    logger.error("%s: %s", step, error)
    with transaction.atomic():
        release(step, **step.end_values(StepState.FAILED, error))
        fails_in = TRAINS if step.position else (RoundState.SAMPLING,)
        move(step.round, RoundState.FAILED, sources=fails_in, finished_at=Now())
        Round.objects.filter(pk=step.round_id).update(cancel_requested=False, pause_requested=False)
        tell_managers_of_round(
            step.round,
            NotificationKind.ROUND_FAILED,
            key=f":{step.pk}:{timezone.now().isoformat()}",
            error=error,
        )


def _next_step(round_id: int) -> int | None:
    """Return the first unfinished step, if the round may go on with it."""
    round_ = Round.objects.filter(pk=round_id, state__in=IN_PROGRESS).first()
    if round_ is None:
        return None
    steps = RoundStep.objects.filter(round_id=round_id).exclude(state=StepState.FINISHED)
    steps = steps.filter(position__gt=0) if round_.state in TRAINS else steps.filter(position=0)
    first = steps.order_by("position").first()
    if first is None or first.state not in (StepState.WAITING, StepState.RUNNING):
        return None
    return first.pk
