"""Places of a comparison for annotators, and the tallies of rounds that follow from them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count

from django.db import connection
from django.db.models import F, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import AssignmentState, Purpose
from annotation.errors import LeaseLost
from annotation.models import AnnotatorTally, Assignment, Comparison, Project, RoundTally
from annotation.models.work import HOLDS_A_SLOT
from annotation.selectors.progress import count_done


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One request of one person in one project, and their tally at this moment."""

    tally_id: int
    number: int
    submitted: int
    retests: int
    in_round: RoundTally


_TAKE_TURN = """
    INSERT INTO annotation_annotatortally
        (project_id, annotator_id, turns, submitted, retests, round_number, round_done, round_unseen)
    VALUES (%s, %s, 1, 0, 0, NULL, 0, 0)
    ON CONFLICT (project_id, annotator_id)
        DO UPDATE SET turns = annotation_annotatortally.turns + 1
    RETURNING id, turns, submitted, retests, round_number, round_done, round_unseen
"""


def take_turn(*, project_id: int, annotator_id: int) -> Turn:
    """Wait for this person's other requests in this project, then go on alone until the transaction ends.

    It comes first in a transaction: it is the lock of the person. One statement makes the row, locks
    it and reads it, which no query of the ORM can.
    """
    with connection.cursor() as cursor:
        cursor.execute(_TAKE_TURN, [project_id, annotator_id])
        tally_id, number, submitted, retests, *in_round = cursor.fetchone()
    return Turn(
        tally_id=tally_id,
        number=number,
        submitted=submitted,
        retests=retests,
        in_round=RoundTally(*in_round),
    )


def count_submission(*, turn: Turn, assignment: Assignment) -> Turn:
    """Count an assignment that was just submitted for the first time, and return the turn with it counted.

    Call it in the turn's transaction. Gold, qualification and retests are no part of anyone's progress.
    """
    comparison = assignment.comparison
    counted = turn.in_round
    if comparison.purpose == Purpose.GOLD or assignment.retest_of_id is not None:
        # The page that comes next counts it like any other.
        in_round = counted._replace(round_unseen=counted.round_unseen + 1)
        AnnotatorTally.objects.filter(pk=turn.tally_id).update(**in_round._asdict())
        return replace(turn, in_round=in_round)
    if comparison.purpose != Purpose.WORK:
        return turn
    if counted.round_number == comparison.round_number:
        done = counted.round_done + 1
    else:
        # Another round than last time: counted once from the rows, then kept again.
        done = count_done(
            project_id=comparison.project_id,
            annotator_id=assignment.annotator_id,
            round_number=comparison.round_number,
        )
    same_round = counted.round_number in (None, comparison.round_number)
    in_round = RoundTally(comparison.round_number, done, counted.round_unseen if same_round else 0)
    submitted = turn.submitted + 1
    AnnotatorTally.objects.filter(pk=turn.tally_id).update(submitted=submitted, **in_round._asdict())
    return replace(turn, submitted=submitted, in_round=in_round)


def count_retest(*, turn: Turn) -> None:
    """Count a retest that was given. One that is given back is not offered again at once."""
    AnnotatorTally.objects.filter(pk=turn.tally_id).update(retests=F("retests") + 1)
