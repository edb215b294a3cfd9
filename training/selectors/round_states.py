"""States of rounds, and the rounds that wait for a decision."""

from django.db.models import Exists, OuterRef, QuerySet

from annotation.models import Comparison
from training.choices import CAN_ROLL_BACK, CAN_START_AGAIN, STATE_OF_STEP, RoundState, StepKind, StepState
from training.models import Round, RoundStep

_ENDED = (StepState.FAILED, StepState.CANCELLED)


def awaiting_evidence() -> QuerySet[Round]:
    """Return rounds that ended without enough evidence and can still be decided: the next does not train
    yet."""
    following = Round.objects.filter(
        project=OuterRef("project"), number=OuterRef("number") + 1, state__in=CAN_ROLL_BACK
    )
    return Round.objects.filter(Exists(following), state=RoundState.NOT_ENOUGH_EVIDENCE)


def can_decide(round_: Round) -> bool:
    """Return whether a round's new policy may be promoted or rejected now."""
    if round_.state == RoundState.NOT_ENOUGH_EVIDENCE:
        return awaiting_evidence().filter(pk=round_.pk).exists()
    return round_.state == RoundState.DECIDING


def place_of(round_: Round) -> RoundState:
    """Return the state in which a paused round resumes, by its steps."""
    steps = RoundStep.objects.filter(round=round_).order_by("position")
    training = [step for step in steps if step.position > 0]
    if training:
        next_one = next((step for step in training if step.state != StepState.FINISHED), training[-1])
        return STATE_OF_STEP[StepKind(next_one.kind)]
    # A running or paused round does not resume sampling that ended early.
    ended_early = Round.objects.filter(pk=round_.pk, state__in=CAN_START_AGAIN).exists()
    left = {StepState.WAITING, StepState.RUNNING} | (set(_ENDED) if ended_early else set())
    if any(step.state in left for step in steps):
        return RoundState.SAMPLING
    comparisons = Comparison.objects.filter(project=round_.project_id, round_number=round_.number)
    return RoundState.LABELLING if steps or comparisons.exists() else RoundState.DRAFT
