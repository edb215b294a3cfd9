"""Allowed transitions between the states of a round, and the only way to make one."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F, QuerySet
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from training.choices import STATE_OF_STEP, TRAINS, RoundState, StepKind, StepState
from training.models import Round, RoundStep
from training.services.jobs.events import tell_of_round

_ENDS_EARLY = frozenset({RoundState.PAUSED, RoundState.FAILED, RoundState.CANCELLED})
_GOES_ON = frozenset({RoundState.DRAFT, RoundState.SAMPLING, RoundState.LABELLING, *TRAINS})

MAY_FOLLOW: Mapping[RoundState, frozenset[RoundState]] = {
    RoundState.DRAFT: frozenset({RoundState.SAMPLING, RoundState.CANCELLED}),
    RoundState.SAMPLING: frozenset({RoundState.LABELLING, RoundState.TRAINING_REWARD_MODELS}) | _ENDS_EARLY,
    RoundState.LABELLING: frozenset({RoundState.SAMPLING, RoundState.TRAINING_REWARD_MODELS}) | _ENDS_EARLY,
    RoundState.TRAINING_REWARD_MODELS: frozenset({RoundState.TRAINING_POLICY}) | _ENDS_EARLY,
    RoundState.TRAINING_POLICY: frozenset({RoundState.EVALUATING}) | _ENDS_EARLY,
    RoundState.EVALUATING: frozenset({RoundState.DECIDING}) | _ENDS_EARLY,
    # A step may be done anew while the decision waits.
    RoundState.DECIDING: frozenset(
        {RoundState.PROMOTED, RoundState.REJECTED, RoundState.NOT_ENOUGH_EVIDENCE, RoundState.SAMPLING}
    )
    | frozenset(TRAINS) - {RoundState.DECIDING}
    | _ENDS_EARLY,
    # Evidence may still come in, or a person decides.
    RoundState.NOT_ENOUGH_EVIDENCE: frozenset({RoundState.PROMOTED, RoundState.REJECTED}),
    RoundState.PAUSED: _GOES_ON - {RoundState.DRAFT} | {RoundState.CANCELLED},
    RoundState.FAILED: _GOES_ON - {RoundState.DRAFT} | {RoundState.CANCELLED},
    RoundState.CANCELLED: _GOES_ON,
    RoundState.PROMOTED: frozenset(),
    RoundState.REJECTED: frozenset(),
}
"""From each state, those that may come next. Where a round stands still it may go on from any step."""

IN_PROGRESS = (RoundState.SAMPLING, RoundState.LABELLING, *TRAINS)
"""States in which workers look for steps to do."""

TRAINING_STEPS = (
    StepKind.FREEZE_SNAPSHOT,
    StepKind.TRAIN_REWARD_MODEL,
    StepKind.TRAIN_EVALUATOR,
    StepKind.TRAIN_POLICY,
    StepKind.REGISTER_CHECKPOINTS,
    StepKind.EVALUATE,
    StepKind.DECIDE,
)
"""In this order; the evaluator's only in rounds that train one (`trains_evaluator`)."""


FROM_THE_BEGINNING: Mapping[str, Any] = {
    "state": StepState.WAITING,
    "current": 0,
    "total": 0,
    "message": "",
    "error": "",
    "worker": "",
    "heartbeat_at": None,
    "finished_at": None,
}
"""Columns of a step that is done again."""


def move(
    round_: Round, to: RoundState, *, sources: Collection[RoundState] = tuple(RoundState), **values: object
) -> bool:
    """Take a round to another state in one guarded UPDATE, `values` with it; whether it was moved.

    It is moved only from a state of `sources` after which `to` may come: of any that try at once, one does.
    """
    may_precede = [state for state, following in MAY_FOLLOW.items() if to in following and state in sources]
    with transaction.atomic():
        moved = Round.objects.filter(pk=round_.pk, state__in=may_precede).update(state=to, **values)
        if moved:
            tell_of_round(round_, to)
    return bool(moved)


def enter(step: RoundStep) -> bool:
    """Note that a round does this step now. False where it was stopped in the meantime.

    Answering goes on in labelling, so that a round in labelling is not taken back to sampling by it.
    """
    to = STATE_OF_STEP[StepKind(step.kind)]
    here = (RoundState.SAMPLING, RoundState.LABELLING) if to == RoundState.SAMPLING else (to,)
    # An UPDATE even where nothing changes: whoever stops the round at this moment holds its row.
    if Round.objects.filter(pk=step.round_id, state__in=here).update(cancel_requested=F("cancel_requested")):
        return True
    return to in TRAINS and move(step.round, to, sources=TRAINS)


@contextmanager
def alone_in_training(round_: Round) -> Iterator[None]:
    """Open a transaction that may take a round into training. Refuses while another round trains."""
    try:
        with transaction.atomic():
            yield
    except IntegrityError as error:
        raise Refusal(
            "another_round_trains",
            _("Another round of %(project)s is training: wait for it, or cancel it."),
            project=round_.project,
        ) from error


def unfinished(round_: Round) -> QuerySet[RoundStep]:
    """Steps that somebody does, or is to do."""
    return RoundStep.objects.filter(round=round_, state__in=[StepState.WAITING, StepState.RUNNING])


def is_being_done(round_: Round) -> bool:
    """Return whether a worker has a step of the round."""
    return RoundStep.objects.filter(round=round_, state=StepState.RUNNING).exists()
