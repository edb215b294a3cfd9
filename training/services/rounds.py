"""The state machine that takes a project once around the loop."""

import logging
from typing import Any

from django.db import IntegrityError, OperationalError, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.models import Project, User
from training.choices import CAN_START_AGAIN, RoundState, StepKind, StepState
from training.contract import ContractError
from training.doorbell import ring, ring_after_commit
from training.models import Round, RoundStep
from training.recipe import default_recipe
from training.services.checkpoints import register_starter
from training.services.claims import (
    CancelledError,
    ClaimLostError,
    InterruptedStepError,
    Pulse,
    WorkerStoppingError,
    cancel_step,
    claim_step,
    fail_step,
    finish_step,
    free_to_claim,
    release_step,
)
from training.services.snapshots import refuse_unless_learnable
from training.services.steps import do_step

logger = logging.getLogger(__name__)

TRAINING_STEPS = (
    StepKind.FREEZE_SNAPSHOT,
    StepKind.TRAIN_REWARD_MODEL,
    StepKind.TRAIN_POLICY,
    StepKind.REGISTER_CHECKPOINTS,
    StepKind.ANSWER_PROMPTS,
)


def open_first_round(
    *, project: Project, started_by: User | None = None, recipe: dict[str, Any] | None = None
) -> Round:
    """Open a project's first round: the starter model is to answer its prompts.

    Idempotent. A worker is told after the commit; comparisons appear as answers come.
    """
    with transaction.atomic():
        round_, _ = Round.objects.get_or_create(
            project=project,
            number=1,
            defaults={
                "policy": register_starter(),
                "recipe": recipe or default_recipe(),
                "created_by": started_by,
            },
        )
        RoundStep.objects.get_or_create(round=round_, position=0, defaults={"kind": StepKind.ANSWER_PROMPTS})
        ring_after_commit(round_.pk)
    return round_


def start_round(*, round_: Round, started_by: User) -> None:
    """Start training on the judgments of now. A worker is told after the commit.

    Refuses a round that is not in labelling, a project that trains already, and judgments
    from which nothing can be learnt. Ends the answering of prompts that still goes on: the
    machine is needed for training, and what is not labelled yet cannot be learnt from.
    """
    refuse_unless_learnable(round_.project, range(1, round_.number + 1))
    try:
        with transaction.atomic():
            taken = Round.objects.filter(pk=round_.pk, state=RoundState.LABELLING).update(
                state=RoundState.TRAINING, started_at=Now(), started_by=started_by, cancel_requested=False
            )
            if not taken:
                raise Refusal(
                    _("%(round)s is not in labelling any more: look at where it is now.") % {"round": round_}
                )
            _unfinished(round_).filter(position=0).update(
                state=StepState.CANCELLED,
                worker="",
                heartbeat_at=None,
                message="ended when training started; what was answered stands",
                finished_at=Now(),
            )
            RoundStep.objects.bulk_create(
                RoundStep(round=round_, position=position, kind=kind)
                for position, kind in enumerate(TRAINING_STEPS, start=1)
            )
            ring_after_commit(round_.pk)
    except IntegrityError as error:
        raise Refusal(
            _("Another round of %(project)s is training: wait for it, or cancel it.")
            % {"project": round_.project}
        ) from error
    round_.refresh_from_db()


def start_again(*, round_: Round) -> None:
    """Go on where a failed or cancelled round ended; what is finished is not done again.

    Refuses where nothing failed and nothing was cancelled.
    """
    try:
        with transaction.atomic():
            Round.objects.filter(pk=round_.pk, state__in=CAN_START_AGAIN).update(
                state=RoundState.TRAINING, cancel_requested=False, finished_at=None
            )
            state = Round.objects.values_list("state", flat=True).get(pk=round_.pk)
            steps = RoundStep.objects.filter(round=round_, state__in=[StepState.FAILED, StepState.CANCELLED])
            # Once training has started, an answering that it ended is not taken up again.
            steps = steps.filter(position=0) if state == RoundState.LABELLING else steps.exclude(position=0)
            if state == RoundState.FINISHED or not steps.update(
                state=StepState.WAITING, error="", message="", finished_at=None
            ):
                raise Refusal(
                    _("Nothing of %(round)s failed or was cancelled: there is nothing to start again.")
                    % {"round": round_}
                )
            Round.objects.filter(pk=round_.pk).update(cancel_requested=False)
            ring_after_commit(round_.pk)
    except IntegrityError as error:
        raise Refusal(
            _("Another round of %(project)s is training: wait for it, or cancel it.")
            % {"project": round_.project}
        ) from error
    round_.refresh_from_db()


def cancel_round(*, round_: Round) -> None:
    """Ask whoever works on a round to stop; at once where nobody does. Finished steps stand.

    Refuses where there is nothing to stop.
    """
    with transaction.atomic():
        asked = Round.objects.filter(
            pk=round_.pk, state__in=[RoundState.LABELLING, RoundState.TRAINING]
        ).update(cancel_requested=True)
        if not asked or not _unfinished(round_).exists():
            Round.objects.filter(pk=round_.pk).update(cancel_requested=False)
            raise Refusal(
                _("Nothing of %(round)s is going on: there is nothing to cancel.") % {"round": round_}
            )
        if not RoundStep.objects.filter(round=round_, state=StepState.RUNNING).exists():
            _unfinished(round_).update(
                state=StepState.CANCELLED, message="cancelled before it began", finished_at=Now()
            )
            _settle_cancel(round_)
    round_.refresh_from_db()


def reopen_round(*, round_: Round) -> None:
    """Take a failed or cancelled round back to labelling, to label more or to change the recipe.

    Its snapshot and runs stay in the records, but the next start freezes and trains anew.
    Refuses once the next round is open.
    """
    with transaction.atomic():
        if Round.objects.filter(project=round_.project, number=round_.number + 1).exists():
            raise Refusal(
                _("The round after %(round)s is open already: start this one again instead.")
                % {"round": round_}
            )
        taken = Round.objects.filter(pk=round_.pk, state__in=CAN_START_AGAIN).update(
            state=RoundState.LABELLING,
            snapshot=None,
            started_at=None,
            started_by=None,
            finished_at=None,
            cancel_requested=False,
        )
        if not taken:
            raise Refusal(
                _("%(round)s neither failed nor was cancelled: it stays as it is.") % {"round": round_}
            )
        RoundStep.objects.filter(round=round_, position__gt=0).delete()
    round_.refresh_from_db()


def advance_round(round_id: int) -> None:
    """Do whatever of a round can be done now, step after step, until something stops it.

    Safe to call at any time, from anywhere, twice at once: a step is done by who claims it.
    """
    while step_id := _next_step(round_id):
        step = claim_step(step_id)
        if step is None or not _carry_out(step):
            return
    _settle_finished(round_id)


def rounds_with_work() -> list[int]:
    """Rounds with a step that waits or whose worker has gone silent, or that only must be closed."""
    unfinished = RoundStep.objects.exclude(state=StepState.FINISHED).filter(position__gt=0)
    before = unfinished.filter(round=OuterRef("round"), position__lt=OuterRef("position"))
    active = Q(round__state=RoundState.TRAINING, position__gt=0) | Q(
        round__state=RoundState.LABELLING, position=0
    )
    next_steps = RoundStep.objects.filter(~Exists(before), active).filter(free_to_claim())
    to_close = Round.objects.filter(state=RoundState.TRAINING).exclude(steps__in=unfinished)
    return sorted({*next_steps.values_list("round_id", flat=True), *to_close.values_list("pk", flat=True)})


def sweep() -> None:
    """Ring for every round with work that nobody does: lost messages, dead workers."""
    for round_id in rounds_with_work():
        ring(round_id)


def _carry_out(step: RoundStep) -> bool:
    """Do a claimed step; whether the round may go on to the next one."""
    logger.info("%s: begins", step)
    pulse = Pulse(step)
    try:
        try:
            pulse.write()
            outcome = do_step(step, pulse)
            finish_step(step, message=outcome)
        except CancelledError:
            _cancelled(step)
        except WorkerStoppingError:
            logger.info("%s: given back, because this worker ends", step)
            release_step(step)
        except InterruptedStepError as interruption:
            logger.warning("%s: given back, because %s", step, interruption)
            release_step(step)
        except OperationalError:
            logger.exception("%s: the database did not answer; given back", step)
            release_step(step)
        except (Refusal, ContractError) as error:
            _failed(step, str(error))
        except ClaimLostError:
            raise
        except Exception as error:
            logger.exception("%s: failed", step)
            _failed(step, f"Something went wrong that nobody foresaw ({error!r}). The worker's log has more.")
        else:
            logger.info("%s: finished, %s", step, outcome)
            return True
    except ClaimLostError:
        logger.warning("%s: someone else has it now", step)
    return False


def _cancelled(step: RoundStep) -> None:
    with transaction.atomic():
        cancel_step(step, message="cancelled; start again to go on where it was")
        _settle_cancel(step.round)


def _failed(step: RoundStep, error: str) -> None:
    logger.error("%s: %s", step, error)
    with transaction.atomic():
        fail_step(step, error=error)
        Round.objects.filter(pk=step.round_id, state=RoundState.TRAINING).update(
            state=RoundState.FAILED, finished_at=Now()
        )


def _settle_cancel(round_: Round) -> None:
    """The request is fulfilled. A round whose answering was cancelled goes on being labelled."""
    Round.objects.filter(pk=round_.pk, state=RoundState.TRAINING).update(
        state=RoundState.CANCELLED, finished_at=Now()
    )
    Round.objects.filter(pk=round_.pk).update(cancel_requested=False)


def _settle_finished(round_id: int) -> None:
    waiting = RoundStep.objects.exclude(state=StepState.FINISHED).filter(position__gt=0)
    Round.objects.filter(pk=round_id, state=RoundState.TRAINING).exclude(steps__in=waiting).update(
        state=RoundState.FINISHED, finished_at=Now(), cancel_requested=False
    )


def _next_step(round_id: int) -> int | None:
    """The first step that is not finished, if the round may go on with it."""
    round_ = Round.objects.filter(pk=round_id).first()
    if round_ is None or round_.state not in (RoundState.LABELLING, RoundState.TRAINING):
        return None
    steps = RoundStep.objects.filter(round_id=round_id).exclude(state=StepState.FINISHED)
    steps = steps.filter(position=0) if round_.state == RoundState.LABELLING else steps.filter(position__gt=0)
    first = steps.order_by("position").first()
    if first is None or first.state not in (StepState.WAITING, StepState.RUNNING):
        return None
    return first.pk


def _unfinished(round_: Round) -> QuerySet[RoundStep]:
    return RoundStep.objects.filter(round=round_, state__in=[StepState.WAITING, StepState.RUNNING])
