"""The places of a comparison: as many as `overlap`, each held by one assignment.

`Comparison.open_slots` counts the places that are left; whoever takes or gives back a place
changes it with an update whose row count is checked. Beneath it stand the constraints
`assignment_slot_held_once` and `assignment_never_twice_to_one_person`.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import count

from django.db.models import F, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import AssignmentState
from annotation.errors import LeaseLost
from annotation.models import Assignment, Comparison, Project
from annotation.models.work import HOLDS_A_SLOT


def take_slot(comparison: Comparison) -> int | None:
    """Take a place of a comparison: its lowest free slot, or None when all are held.

    Call it inside a transaction that then writes the assignment which holds the slot.
    """
    open_ = Comparison.objects.filter(pk=comparison.pk, open_slots__gt=0)
    # A manager may have raised the overlap since the comparison was read, so the update asks for it.
    if comparison.overlap == 1 and open_.filter(overlap=1).update(open_slots=0):
        return 0
    if not open_.update(open_slots=F("open_slots") - 1):
        return None
    # The update holds the comparison's row until the transaction ends: nobody else counts now.
    held = set(
        Assignment.objects.filter(comparison=comparison, state__in=HOLDS_A_SLOT).values_list(
            "slot", flat=True
        )
    )
    return next(slot for slot in count() if slot not in held)


def retake_slot(*, assignment: Assignment) -> None:
    """Hold a place again for an answer that came after its lease had gone.

    Call it inside a transaction, with the assignment locked. Refuses with `LeaseLost` when
    others hold all places; gold, qualification and retests take no place, so theirs is never
    gone. What this person was leased of the same comparison meanwhile is given back: the answer
    belongs to the order in which they saw it.
    """
    newer = _others_like(assignment)
    if newer.filter(state=AssignmentState.SUBMITTED).exists():
        raise LeaseLost(
            "submitted_elsewhere", _("You have submitted this comparison already, on another page.")
        )
    for lease in newer.filter(state=AssignmentState.LEASED).only("pk", "comparison_id", "slot"):
        if close(lease.pk, AssignmentState.RELEASED, timezone.now()):
            give_back([lease])
    newer.filter(state=AssignmentState.SKIPPED).update(state=AssignmentState.RELEASED)
    if assignment.slot is not None:
        assignment.slot = take_slot(assignment.comparison)
        if assignment.slot is None:
            raise LeaseLost(
                "lease_expired",
                _(
                    "Your lease on this comparison expired and others have annotated it since, "
                    "so this annotation is not needed. Continue with the next comparison."
                ),
            )
    assignment.state = AssignmentState.LEASED
    assignment.lease_expires_at = timezone.now() + lease_time(assignment.comparison.project)
    assignment.closed_at = None
    assignment.save(update_fields=["slot", "state", "lease_expires_at", "closed_at"])


def give_back(assignments: Iterable[Assignment]) -> None:
    """Open the places again that these assignments held; call it once for each that was closed."""
    for assignment in assignments:
        if assignment.slot is not None:
            Comparison.objects.filter(pk=assignment.comparison_id).update(open_slots=F("open_slots") + 1)


def close(pk: int, state: AssignmentState, moment: datetime, reason: str = "", **guard: datetime) -> bool:
    """End a lease; False when it had ended before, so that its place is given back once."""
    closed = Assignment.objects.filter(pk=pk, state=AssignmentState.LEASED, **guard).update(
        state=state, closed_at=moment, reason=reason
    )
    return closed == 1


def lease_time(project: Project) -> timedelta:
    """Return the duration of a lease without a heartbeat."""
    return timedelta(minutes=project.lease_minutes)


def _others_like(assignment: Assignment) -> QuerySet[Assignment]:
    """This person's other assignments of the same thing. A comparison and its retest are two things."""
    return Assignment.objects.filter(
        comparison_id=assignment.comparison_id,
        annotator_id=assignment.annotator_id,
        retest_of_id=assignment.retest_of_id,
    ).exclude(pk=assignment.pk)
