"""Where one person stands in a project: whether they have qualified, and why they get nothing. Reads only."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, time
from typing import Any

from django.db.models import Count, DateTimeField
from django.utils import timezone

from annotation import selectors
from annotation.choices import AssignmentState, Purpose, QualificationState, Role, WhyNothing
from annotation.known_answers import gold_outcome
from annotation.models import Assignment, Comparison, Judgment, Membership, Project, User
from annotation.prepared import Prepared
from annotation.together import Statement

_SUBMITTED_SINCE = Prepared(
    lambda p: (
        Assignment.objects.filter(
            annotator=p("annotator"),
            state=AssignmentState.SUBMITTED,
            closed_at__gte=p("since", DateTimeField()),
            comparison__project=p("project"),
        )
        .values("annotator")
        .annotate(count=Count("*"))
        .values_list("count")
    )
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Qualification:
    """How far one person is in the qualification set of a project."""

    state: QualificationState
    done: int = 0
    """Answered or skipped; what is skipped is not right."""
    total: int = 0
    right: int = 0
    needed: int = 0
    """So many right answers pass."""


def qualification_of(project: Project, annotator: User) -> Qualification:
    """Where `annotator` stands with the qualification set.

    Not asked are managers, superusers and outsiders, and everyone where the project asks for none
    or has no items yet. The first answer to an item counts.
    """
    membership = selectors.membership_of(annotator, project)
    if membership is None or not _is_subject(annotator, project, membership):
        return Qualification(state=QualificationState.NOT_ASKED)
    items = Comparison.objects.filter(project=project, purpose=Purpose.QUALIFICATION)
    total = items.count()
    done = Assignment.objects.filter(
        comparison__in=items,
        annotator=annotator,
        retest_of__isnull=True,
        state__in=[AssignmentState.SUBMITTED, AssignmentState.SKIPPED],
    ).count()
    answers = (
        Judgment.objects.filter(comparison__in=items, annotator=annotator, supersedes__isnull=True)
        .select_related("comparison__gold_answer")
        .prefetch_related("ranks")
    )
    right = sum(gold_outcome(answer).right for answer in answers)
    # Less a hair: 7 % of 100 is 7, though 0.07 × 100 is a little more in binary.
    needed = math.ceil((project.qualification_pass_share or 0.0) * total - 1e-9)
    return Qualification(
        state=_state(membership, done=done, total=total, right=right, needed=needed),
        done=done,
        total=total,
        right=right,
        needed=needed,
    )


def has_to_qualify(annotator: User, project: Project, membership: Membership | None) -> bool:
    """Whether this person must pass the qualification set before they get work."""
    return (
        membership is not None
        and membership.qualified_at is None
        and _is_subject(annotator, project, membership)
    )


def asking_today(project: Project, annotator: User) -> Statement[list[tuple[Any, ...]]]:
    """The question of `submitted_today`, for who sends it with others; `counted` reads its answer."""
    here = timezone.get_default_timezone()
    midnight = datetime.combine(timezone.localdate(timezone=here), time.min, tzinfo=here)
    return _SUBMITTED_SINCE.asking_rows(annotator=annotator.pk, since=midnight, project=project.pk)


def counted(answer: Sequence[tuple[Any, ...]]) -> int:
    """The number in the answer to `asking_today`."""
    return answer[0][0] if answer else 0


def submitted_today(project: Project, annotator: User) -> int:
    """How many `annotator` has submitted since midnight, by the server's clock."""
    return counted(asking_today(project, annotator).run())


def left_today(project: Project, annotator: User) -> int | None:
    """How many more `annotator` may submit today; None without a limit."""
    if project.daily_limit is None:
        return None
    return max(project.daily_limit - submitted_today(project, annotator), 0)


def why_nothing(project: Project, annotator: User) -> WhyNothing:
    """Why `assign_next` gave this person nothing."""
    if left_today(project, annotator) == 0:
        return WhyNothing.DAY_IS_FULL
    if qualification_of(project, annotator).state == QualificationState.FAILED:
        return WhyNothing.NOT_QUALIFIED
    return WhyNothing.NOTHING_LEFT


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
