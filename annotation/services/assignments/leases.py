"""Slots and leases: how many places a comparison has left, who holds one, and until when."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from django.core.cache import cache
from django.db import connection, transaction
from django.db.models import Exists, F, OuterRef, QuerySet
from django.db.models.functions import Greatest
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import AcquisitionArm, AssignmentState, Purpose, QualificationState
from annotation.errors import LeaseLost, NotAllowed, Refusal
from annotation.models import (
    AnnotatorTally,
    Assignment,
    Comparison,
    Completion,
    Membership,
    Project,
    RoundTally,
    User,
)
from annotation.models.work import HOLDS_A_SLOT
from annotation.selectors import eligibility
from annotation.selectors.access import SPENT_STATES
from annotation.selectors.progress import count_done
from annotation.services.assignments.display_order import display_order as order_of
from annotation.services.assignments.display_order import draw_number

# Places of a comparison for annotators, and the tallies of rounds that follow from them.


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


def uncount_submissions(*, project_id: int, annotator_id: int, rounds: Mapping[int, int]) -> None:
    """Take work that was taken back off a person's tally. rounds: round → number of its comparisons."""
    tally = AnnotatorTally.objects.filter(project=project_id, annotator=annotator_id)
    tally.update(submitted=Greatest(F("submitted") - sum(rounds.values()), 0))
    for round_number, number in rounds.items():
        in_round = tally.filter(round_number=round_number)
        in_round.update(round_done=Greatest(F("round_done") - number, 0))


def count_retest(*, turn: Turn) -> None:
    """Count a retest that was given. One that is given back is not offered again at once."""
    AnnotatorTally.objects.filter(pk=turn.tally_id).update(retests=F("retests") + 1)


# ── Leases ──

MOST_HELD = 2
"""So many comparisons of a project are in one person's hands at most: the one on screen and the next."""

EXPIRY_SECONDS = 1

_EXPIRED_PER_CALL = 200


def stale_leases(project: Project, moment: datetime) -> QuerySet[Assignment]:
    """The leases of a project that ran out before `moment`."""
    # Not a join: with one, SQLite begins at the project's comparisons, of which there are many more.
    of_project = Comparison.objects.filter(pk=OuterRef("comparison_id"), project=project)
    return Assignment.objects.filter(
        Exists(of_project), state=AssignmentState.LEASED, lease_expires_at__lt=moment
    )


def expire_leases(*, project: Project, now: datetime | None = None) -> int:
    """Give back what was leased and neither answered nor renewed in time; how many came back."""
    moment = now or timezone.now()
    if not stale_leases(project, moment).exists():
        return 0
    with transaction.atomic():
        # A lease that someone else handles right now is theirs to handle.
        locked = list(
            stale_leases(project, moment)
            .select_for_update(skip_locked=True, no_key=True, of=only_self())
            .order_by("comparison_id")
            .only("pk", "comparison_id", "slot")[:_EXPIRED_PER_CALL]
        )
        expired = [
            lease
            for lease in locked
            if close(lease.pk, AssignmentState.EXPIRED, moment, lease_expires_at__lt=moment)
        ]
        give_back(expired)
    return len(expired)


def expire_leases_now_and_then(*, project: Project) -> None:
    """`expire_leases`, but by each web process no more than once in `EXPIRY_SECONDS` for one project.

    For who gets work in any case and asks many times a second; who gets none looks for themselves.
    """
    if cache.add(f"annotation.expiry:{project.pk}", True, EXPIRY_SECONDS):
        expire_leases(project=project)


def renew_lease(*, assignment: Assignment, annotator: User) -> Assignment:
    """Restart the lease: its annotator is still at work. Refuses when it is no longer theirs.

    What they hold beside it, loaded ahead, is renewed too.
    """
    require_owner(assignment, annotator)
    if not extend(assignment):
        raise LeaseLost("lease_lost", _("This comparison is no longer yours. Ask for the next one."))
    # One row after the other, each in a transaction of its own: two tabs that renew crosswise
    # never wait for each other in a ring.
    for lease in held_by(annotator, assignment.comparison.project):
        if lease.pk != assignment.pk:
            extend(lease)
    return assignment


def skip_assignment(*, assignment: Assignment, annotator: User, reason: str) -> None:
    """Give a comparison back for good: others get it, this person does not meet it again.

    Skipping twice is skipping once. Refuses what is submitted or no longer held.
    """
    require_owner(assignment, annotator)
    with transaction.atomic():
        _end(assignment, AssignmentState.SKIPPED, reason=reason.replace("\x00", "").strip())
        settle_qualification(assignment=assignment)


def release_assignment(*, assignment: Assignment, annotator: User) -> None:
    """Give a comparison back unanswered; anyone may get it, this person too.

    Releasing twice is releasing once. Refuses what is submitted or no longer held.
    """
    require_owner(assignment, annotator)
    _end(assignment, AssignmentState.RELEASED)


def lease(
    comparison: Comparison,
    annotator: User,
    *,
    slot: int | None,
    arm: AcquisitionArm | str = "",
    retest_of: Assignment | None = None,
    display_order: Sequence[int] | None = None,
) -> Assignment:
    """Write the assignment. Without a display order the next of the project is drawn."""
    completions = list(
        Completion.objects.filter(candidacies__comparison=comparison).order_by("candidacies__index")
    )
    if display_order is None:
        drawn_for: Any = {"project": comparison.project, "annotator": annotator}
        number = draw_number(**drawn_for, size=comparison.size)
        display_order = order_of(
            **drawn_for, completion_ids=[completion.pk for completion in completions], number=number
        )
    now = timezone.now()
    leased = Assignment.objects.create(
        comparison=comparison,
        annotator=annotator,
        slot=slot,
        arm=arm,
        retest_of=retest_of,
        display_order=list(display_order),
        leased_at=now,
        lease_expires_at=now + lease_time(comparison.project),
    )
    leased.fresh_completions = completions
    return leased


def held_by(annotator: User, project: Project) -> list[Assignment]:
    """Return the leases of this person in a project, oldest first."""
    leases = Assignment.objects.filter(
        annotator=annotator, state=AssignmentState.LEASED, comparison__project=project
    )
    # Ids first: a person who submits holds nothing more as a rule, and every column of a query costs time.
    ids = list(leases.values_list("pk", flat=True))
    if not ids:
        return []
    held = list(leases.filter(pk__in=ids).select_related("comparison__prompt").order_by("leased_at", "id"))
    for assignment in held:
        assignment.comparison.project = project
    return held


def extend(assignment: Assignment) -> bool:
    """Restart the lease unless it is over; a lease past its time counts until someone takes it back."""
    ends = timezone.now() + lease_time(assignment.comparison.project)
    extended = Assignment.objects.filter(pk=assignment.pk, state=AssignmentState.LEASED).update(
        lease_expires_at=ends
    )
    if extended:
        assignment.lease_expires_at = ends
    return extended == 1


def is_free(assignment: Assignment) -> bool:
    """Lock a lease without waiting; False while another transaction has it, or when it is over."""
    free = Assignment.objects.select_for_update(skip_locked=True, no_key=True).filter(
        pk=assignment.pk, state=AssignmentState.LEASED
    )
    return bool(list(free.values_list("pk")))


def require_owner(assignment: Assignment, annotator: User) -> None:
    """Refuse who was not given this assignment."""
    if assignment.annotator_id != annotator.pk:
        raise NotAllowed("assigned_to_another", _("This comparison was given to someone else."))


def only_self() -> tuple[str, ...]:
    """`of=("self",)` where the database can lock one table of a join."""
    return ("self",) if connection.features.has_select_for_update_of else ()


@transaction.atomic
def _end(assignment: Assignment, state: AssignmentState, *, reason: str = "") -> None:
    ended = close(assignment.pk, state, timezone.now(), reason=reason)
    assignment.refresh_from_db(fields=["slot", "state", "reason", "closed_at", "lease_expires_at"])
    if ended:
        give_back([assignment])
        return
    if assignment.state == AssignmentState.SUBMITTED:
        raise Refusal(
            "comparison_submitted", _("This comparison is submitted. Open it again to change the annotation.")
        )
    if assignment.state != state:
        raise LeaseLost("lease_lost", _("This comparison is no longer yours. Ask for the next one."))


# ── Qualification ───────────────────────────────────────────────────────────────────────


def next_qualification_item(*, project: Project, annotator: User) -> Comparison | None:
    """The first item of the set that this person has neither answered nor skipped, in their order."""
    had = Assignment.objects.filter(comparison=OuterRef("pk"), annotator=annotator, state__in=SPENT_STATES)
    items = Comparison.objects.filter(
        ~Exists(had),
        project=project,
        purpose=Purpose.QUALIFICATION,
        gold_answer__retired_at__isnull=True,
    )
    return items.select_related("prompt").order_by("id").first()


def settle_qualification(*, assignment: Assignment) -> None:
    """After an item of the set was answered or skipped: let its annotator in if they have passed.

    Call it in the transaction of the answer. Does nothing for other comparisons.
    """
    if assignment.comparison.purpose == Purpose.QUALIFICATION and assignment.state in (
        AssignmentState.SUBMITTED,
        AssignmentState.SKIPPED,
    ):
        let_in_if_passed(project=assignment.comparison.project, annotator=assignment.annotator)


def let_in_if_passed(*, project: Project, annotator: User) -> bool:
    """Set `qualified_at` of who has passed; whether work is open to them now."""
    qualification = eligibility.qualification_of(project, annotator)
    if qualification.state == QualificationState.PASSED:
        Membership.objects.filter(project=project, user=annotator, qualified_at__isnull=True).update(
            qualified_at=timezone.now()
        )
    return qualification.state in (QualificationState.PASSED, QualificationState.NOT_ASKED)
