"""Eligibility of one person in a project: qualification, and reasons for an empty queue. Reads only."""

import math
from dataclasses import dataclass
from datetime import datetime, time

from django.db.models import Exists, OuterRef
from django.utils import timezone

from annotation.choices import (
    SPENT_STATES,
    AssignmentState,
    Purpose,
    QualificationState,
    Role,
    WhyNothing,
)
from annotation.models import Assignment, Comparison, Judgment, Membership, Project, User
from annotation.selectors import access
from annotation.selectors.allocation import closed_rules, open_under
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
