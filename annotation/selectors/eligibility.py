"""Eligibility of one person in a project: qualification, and reasons for an empty queue. Reads only."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, time

from django.db.models import Count, Exists, OuterRef, Q
from django.utils import timezone

from annotation.choices import (
    SPENT_STATES,
    AssignmentState,
    Availability,
    Purpose,
    QualificationState,
    ReturnState,
    Role,
    WhyNothing,
)
from annotation.models import Assignment, Comparison, Judgment, Membership, Project, ReviewReturn, User
from annotation.selectors import access
from annotation.selectors.allocation import Closed, closed_rules, open_under, reservations
from annotation.selectors.calibration import who_is_asked
from annotation.selectors.known_answers import disputes_in, gold_outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Qualification:
    """Progress of one person in the qualification set of a project."""

    state: QualificationState
    done: int = 0
    """Answered or skipped; what is skipped is not right."""
    total: int = 0
    right: int = 0
    needed: int = 0
    """So many right answers pass."""


def qualification_of(project: Project, annotator: User) -> Qualification:
    """Return the state of `annotator` in the qualification set.

    Not asked are managers, superusers and outsiders, and everyone where the project asks for none
    or has no items yet. The first answer to an item counts; one that the annotator's group disputes does not.
    """
    membership = access.membership_of(annotator, project)
    if membership is None or not _is_subject(annotator, project, membership):
        return Qualification(state=QualificationState.NOT_ASKED)
    items = Comparison.objects.filter(
        project=project, purpose=Purpose.QUALIFICATION, gold_answer__retired_at__isnull=True
    )
    total = items.count()
    done = Assignment.objects.filter(
        comparison__in=items,
        annotator=annotator,
        retest_of__isnull=True,
        state__in=[AssignmentState.SUBMITTED, AssignmentState.SKIPPED],
    ).count()
    answers = list(
        Judgment.objects.filter(comparison__in=items, annotator=annotator, supersedes__isnull=True)
        .select_related("comparison__gold_answer")
        .prefetch_related("ranks")
    )
    disputes = disputes_in(project, [answer.comparison_id for answer in answers])
    counted = [answer for answer in answers if not disputes.concerns(annotator.pk, answer.comparison_id)]
    right = sum(gold_outcome(answer).right for answer in counted)
    # Less a hair: 7 % of 100 is 7, though 0.07 × 100 is a little more in binary.
    share = project.qualification_pass_share or 0.0
    needed = math.ceil(share * (total - len(answers) + len(counted)) - 1e-9)
    return Qualification(
        state=_state(membership, done=done, total=total, right=right, needed=needed),
        done=done,
        total=total,
        right=right,
        needed=needed,
    )


def has_to_qualify(annotator: User, project: Project, membership: Membership | None) -> bool:
    """Return True where this person must pass the qualification set before they get work."""
    return (
        membership is not None
        and membership.qualified_at is None
        and _is_subject(annotator, project, membership)
    )


def submitted_today(project: Project, annotator: User) -> int:
    """Return how many `annotator` has submitted since midnight, by the server's clock."""
    return Assignment.objects.filter(
        annotator=annotator,
        state=AssignmentState.SUBMITTED,
        closed_at__gte=today_starts(),
        comparison__project=project,
    ).count()


def today_starts() -> datetime:
    """Return the last midnight, by the server's clock."""
    here = timezone.get_default_timezone()
    return datetime.combine(timezone.localdate(timezone=here), time.min, tzinfo=here)


def daily_limit_of(project: Project, membership: Membership | None) -> int | None:
    """Return how many a person may submit a day: their own limit, else the project's, else None."""
    limit = membership.daily_limit if membership is not None else None
    return project.daily_limit if limit is None else limit


def left_today(project: Project, annotator: User, membership: Membership | None) -> int | None:
    """Return the number that `annotator` may still submit today; None without a limit."""
    limit = daily_limit_of(project, membership)
    return None if limit is None else max(limit - submitted_today(project, annotator), 0)


def left_to_submit(project: Project, annotator: User, membership: Membership | None) -> int | None:
    """Return the number that `annotator` may still submit, today and in all; None without a limit."""
    today = left_today(project, annotator, membership)
    if membership is None or membership.total_limit is None:
        return today
    submitted = Assignment.objects.filter(
        annotator=annotator, state=AssignmentState.SUBMITTED, comparison__project=project
    )
    in_all = membership.total_limit - submitted[: membership.total_limit].count()
    return in_all if today is None else min(today, in_all)


def why_nothing(project: Project, annotator: User) -> WhyNothing:
    """Return the reason for which `assign_next` gave this person nothing."""
    if project.archived_at is not None:
        return WhyNothing.ARCHIVED
    membership = access.membership_of(annotator, project)
    if left_today(project, annotator, membership) == 0:
        return WhyNothing.DAY_IS_FULL
    if left_to_submit(project, annotator, membership) == 0:
        return WhyNothing.TOTAL_REACHED
    if qualification_of(project, annotator).state == QualificationState.FAILED:
        return WhyNothing.NOT_QUALIFIED
    if _waits_for_others(project, annotator, membership):
        return WhyNothing.OTHER_SKILLS
    return WhyNothing.NOTHING_LEFT


# Availability of work to all annotators of a project at once.


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberAvailability:
    """Availability of work to one annotator, and what blocks them."""

    availability: Availability
    reason: WhyNothing | None = None
    """Of `why_nothing`, for who waits or is blocked; None where returned annotations alone block."""
    returned: int = 0
    """Returned annotations that wait for an answer: they come before other work."""


def availability_of_annotators(project: Project) -> dict[int, MemberAvailability]:
    """Return the availability of work by the id of each annotator, for the page of all of them.

    Six queries and one for each different set of skills; `qualification_of` asks for those few who have
    answered the whole qualification set without passing, and one query for each participant of an open
    calibration session.
    """
    memberships = project.memberships.filter(
        role=Role.ANNOTATOR, user__is_machine=False, user__is_active=True
    )
    members = list(memberships.select_related("user"))
    submitted = Assignment.objects.filter(state=AssignmentState.SUBMITTED, comparison__project=project)
    counts = dict(submitted.order_by().values_list("annotator").annotate(Count("pk")))
    today = dict(
        submitted.filter(closed_at__gte=today_starts())
        .order_by()
        .values_list("annotator")
        .annotate(Count("pk"))
    )
    held = set(
        Assignment.objects.filter(
            state=AssignmentState.LEASED,
            comparison__project=project,
            lease_expires_at__gt=timezone.now(),
        ).values_list("annotator", flat=True)
    )
    returned = dict(
        ReviewReturn.objects.filter(state=ReturnState.OPEN, assignment__comparison__project=project)
        .order_by()
        .values_list("annotator")
        .annotate(Count("pk"))
    )
    in_qualification, not_qualified = _unqualified(project, members)
    has_open, has_closed = _open_to_members(project, members)
    has_open |= who_is_asked(project)
    found = {}
    for membership in members:
        pk = membership.user_id
        limit = daily_limit_of(project, membership)
        reason = None
        if project.archived_at is not None:
            reason = WhyNothing.ARCHIVED
        elif limit is not None and today.get(pk, 0) >= limit:
            reason = WhyNothing.DAY_IS_FULL
        elif membership.total_limit is not None and counts.get(pk, 0) >= membership.total_limit:
            reason = WhyNothing.TOTAL_REACHED
        elif pk in not_qualified:
            reason = WhyNothing.NOT_QUALIFIED
        elif not (pk in held or pk in in_qualification or pk in has_open):
            reason = WhyNothing.OTHER_SKILLS if pk in has_closed else WhyNothing.NOTHING_LEFT
        availability = Availability.READY
        if returned.get(pk) or reason not in (None, WhyNothing.NOTHING_LEFT):
            availability = Availability.BLOCKED
        elif reason is not None:
            availability = Availability.WAITING
        found[pk] = MemberAvailability(availability=availability, reason=reason, returned=returned.get(pk, 0))
    return found


def _unqualified(project: Project, members: Sequence[Membership]) -> tuple[set[int], set[int]]:
    """Return who is in the qualification set, and who has failed it."""
    subjects = {member.user_id: member for member in members if has_to_qualify(member.user, project, member)}
    if not subjects:
        return set(), set()
    items = Comparison.objects.filter(
        project=project, purpose=Purpose.QUALIFICATION, gold_answer__retired_at__isnull=True
    )
    total = items.count()
    done = dict(
        Assignment.objects.filter(
            comparison__in=items,
            annotator__in=subjects,
            retest_of__isnull=True,
            state__in=[AssignmentState.SUBMITTED, AssignmentState.SKIPPED],
        )
        .order_by()
        .values_list("annotator")
        .annotate(Count("pk"))
    )
    through = {pk for pk in subjects if total and done.get(pk, 0) >= total}
    failed = {
        pk
        for pk in through
        if qualification_of(project, subjects[pk].user).state == QualificationState.FAILED
    }
    return (set(subjects) - through if total else set()), failed


def _open_to_members(project: Project, members: Sequence[Membership]) -> tuple[set[int], set[int]]:
    """Return to whom a comparison is open, and for whom only others' skills close what is open."""
    by_rules: dict[tuple[Closed, ...], list[int]] = defaultdict(list)
    for membership in members:
        by_rules[closed_rules(project, membership)].append(membership.user_id)
    had = Assignment.objects.filter(
        comparison=OuterRef("pk"), annotator=OuterRef(OuterRef("pk")), state__in=SPENT_STATES
    )
    unseen = Comparison.objects.filter(~Exists(had), project=project, purpose=Purpose.WORK, open_slots__gt=0)
    if project.has_reservations:
        named = reservations()
        theirs = named.filter(user=OuterRef(OuterRef("pk")))
        unseen = unseen.filter(Q(~Exists(named)) | Q(Exists(theirs)))
    has_open: set[int] = set()
    has_closed: set[int] = set()
    for closed, people in by_rules.items():
        users = User.objects.filter(pk__in=people)
        has_open.update(users.filter(Exists(unseen.filter(open_under(closed)))).values_list("pk", flat=True))
        if closed:
            barred = unseen.filter(~open_under(closed))
            has_closed.update(users.filter(Exists(barred)).values_list("pk", flat=True))
    return has_open, has_closed


def _waits_for_others(project: Project, annotator: User, membership: Membership | None) -> bool:
    """Return True where the rules alone keep open comparisons from this person."""
    closed = closed_rules(project, membership)
    if not closed:
        return False
    had = Assignment.objects.filter(comparison=OuterRef("pk"), annotator=annotator, state__in=SPENT_STATES)
    return Comparison.objects.filter(
        ~Exists(had), ~open_under(closed), project=project, purpose=Purpose.WORK, open_slots__gt=0
    ).exists()


def _is_subject(annotator: User, project: Project, membership: Membership) -> bool:
    return (
        project.qualification_pass_share is not None
        and not annotator.is_superuser
        and membership.role != Role.MANAGER
    )


def _state(membership: Membership, *, done: int, total: int, right: int, needed: int) -> QualificationState:
    if membership.qualified_at is not None:
        return QualificationState.PASSED
    if total == 0:
        return QualificationState.NOT_ASKED
    if done < total:
        return QualificationState.OPEN
    return QualificationState.PASSED if right >= needed else QualificationState.FAILED
