"""Annotators that are programs: they take comparisons beside people, never in their place.

A machine's assignment holds no slot, as those of gold and retests do: whatever it judges, as many people
judge the comparison as before. What people are shown, and what is counted of them, knows nothing of it.
"""

import uuid

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import SPENT_STATES, AssignmentState, Purpose, WithholdingState
from annotation.errors import NotAllowed
from annotation.models import (
    Assignment,
    Comparison,
    Guideline,
    Judgment,
    Project,
    RubricVersion,
    User,
    Withholding,
)
from annotation.record.judgment import JudgmentRecord
from annotation.selectors import access
from annotation.services.assignments.leases import held_by, lease
from annotation.services.assignments.next import QUEUE_ORDER
from annotation.services.assignments.slots import take_turn
from annotation.services.judgments.checks import check_answer, check_rubric_scores
from annotation.services.judgments.submission import write_judgment


def create_machine(*, name: str) -> User:
    """A user in whose name a program judges. It cannot sign in, and has no part in any project."""
    machine = User(
        username=f"machine-{uuid.uuid4().hex[:16]}", first_name=name[:150], is_active=False, is_machine=True
    )
    machine.set_unusable_password()
    machine.save()
    return machine


def unjudged_by(machine: User, project: Project, *, round_number: int | None = None) -> QuerySet[Comparison]:
    """Return comparisons of a round that an AI annotator has not had, in no order. None is the newest round.

    Also what they have judged already: that is where the two can be compared.
    """
    had = Assignment.objects.filter(comparison=OuterRef("pk"), annotator=machine, state__in=SPENT_STATES)
    kept_back = Withholding.objects.filter(comparison=OuterRef("pk")).exclude(state=WithholdingState.RELEASED)
    return Comparison.objects.filter(
        ~Exists(had),
        ~Exists(kept_back),
        project=project,
        purpose=Purpose.WORK,
        round_number=access.current_round(project) if round_number is None else round_number,
        size__gte=2,
    )


def lease_to_machine(
    *, project: Project, machine: User, round_number: int | None = None
) -> Assignment | None:
    """Lease the next comparison of a round to a machine, or give the one that it holds. None when nothing is
    left. The round is the newest where none is named.

    In the order in which people get them. It is shown the answers as they were recorded: which order it is
    asked in is the caller's to turn round, and no turn of people's orders is used up.
    """
    _require_machine(machine)
    with transaction.atomic():
        take_turn(project_id=project.pk, annotator_id=machine.pk)
        if held := held_by(machine, project):
            return held[0]
        unjudged = unjudged_by(machine, project, round_number=round_number)
        comparison = unjudged.select_related("prompt").order_by(*QUEUE_ORDER).first()
        if comparison is None:
            return None
        comparison.project = project
        recorded = list(comparison.candidates.order_by("index").values_list("completion_id", flat=True))
        return lease(comparison, machine, slot=None, display_order=recorded)


def judge_as_machine(
    *,
    assignment: Assignment,
    machine: User,
    answer: JudgmentRecord,
    guideline: Guideline | None,
    rubric: RubricVersion | None = None,
) -> Judgment:
    """Store what a machine says of its assignment. Twice is once: the second time returns the first.

    Refuses an answer that contradicts itself. A machine is asked for its verdict and its comment, whatever
    else the project asks of people; no review follows, and no tally of people changes. Its rubric scores are
    by the criteria of `rubric`.
    """
    _require_machine(machine)
    if assignment.annotator_id != machine.pk:
        raise NotAllowed("assigned_to_another", _("This comparison was given to someone else."))
    with transaction.atomic():
        take_turn(project_id=assignment.comparison.project_id, annotator_id=machine.pk)
        if (judged := access.current_judgment(assignment)) is not None:
            return judged
        checked = check_answer(comparison=assignment.comparison, answer=answer, imported=True)
        check_rubric_scores(checked.rubric_scores, list(map(str, assignment.display_order)), rubric)
        judgment = write_judgment(
            assignment=assignment,
            answer=checked,
            # The assignment is judged once, so its own key is as good as one that is drawn.
            idempotency_key=uuid.uuid5(machine.pseudonym, f"assignment {assignment.pk}"),
            guideline=guideline,
            rubric=rubric,
        )
        assignment.state = AssignmentState.SUBMITTED
        assignment.closed_at = timezone.now()
        assignment.save(update_fields=["state", "closed_at"])
        return judgment


def _require_machine(user: User) -> None:
    if not user.is_machine:
        raise NotAllowed("people_use_the_screen", _("People judge on the labelling screen."))
