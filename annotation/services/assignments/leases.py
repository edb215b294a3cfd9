"""A comparison in one person's hands: given, renewed, given back, run out; and who is let in to work."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.core.cache import cache
from django.db import connection, transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import AcquisitionArm, AssignmentState, Purpose, QualificationState
from annotation.errors import LeaseLost, NotAllowed, Refusal
from annotation.models import Assignment, Comparison, Completion, Membership, Project, User
from annotation.selectors import eligibility
from annotation.selectors.access import SPENT_STATES
from annotation.services.assignments.display_order import display_order as order_of
from annotation.services.assignments.display_order import draw_number
from annotation.services.assignments.slots import close, give_back, lease_time

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
    """Begin the lease anew: its annotator is still at work. Refuses when it is no longer theirs.

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
    """Begin the lease anew unless it is over; a lease past its time counts until someone takes it back."""
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
    items = Comparison.objects.filter(~Exists(had), project=project, purpose=Purpose.QUALIFICATION)
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
