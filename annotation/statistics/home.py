"""Home page: the projects of somebody, the work that waits in each, and annotations by day."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from django.db.models import Count, Exists, OuterRef, Q
from django.db.models.functions import TruncDate
from django.utils import timezone

from annotation.choices import SPENT_STATES, AssignmentState, Purpose, Role
from annotation.models import Assignment, Comparison, Judgment, Project, User
from annotation.selectors import access
from annotation.selectors.allocation import allotted_to, closed_rules, not_reserved_for_others
from annotation.selectors.annotator_work import progress_and_pace
from annotation.selectors.cached_counts import cached
from annotation.selectors.judged import current_of_people
from annotation.statistics.plots import Bar, bars

_DAYS = 14
_COUNTED = 5
"""Of so many projects home says how much is left: a count takes some queries."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HomeRow:
    """A project on the home page of one person."""

    project: Project
    role: str
    """Label of the person's role; empty for a superuser who is no member."""
    is_manager: bool
    has_work: bool
    """True where a comparison is open to this person, or in their hands."""
    left: int | None
    """Comparisons of their round that wait for this person; None where that is not counted."""
    today: int
    """Annotations by this person since midnight."""
    recent: int
    """Annotations by everybody in the last two weeks."""
    bars: tuple[Bar, ...]


def home_rows(user: User, *, archived: bool = False) -> list[HomeRow]:
    """Return the projects of `user` by name, those with work for them first.

    Four queries, and few more for each of the first projects with work: how much is left there.
    Archived projects come alone, when they are asked for.
    """
    spent = Assignment.objects.filter(comparison=OuterRef("pk"), annotator=user, state__in=SPENT_STATES)
    open_to_user = Comparison.objects.filter(
        ~Exists(spent),
        not_reserved_for_others(user),
        project=OuterRef("pk"),
        purpose=Purpose.WORK,
        open_slots__gt=0,
    )
    held = Assignment.objects.filter(
        annotator=user, state=AssignmentState.LEASED, comparison__project=OuterRef("pk")
    )
    memberships = {membership.project_id: membership for membership in user.memberships.all()}
    projects = list(
        access.projects_for(user)
        .filter(archived_at__isnull=not archived)
        .annotate(holds=Exists(held), has_work=Q(Exists(open_to_user)) | Q(Exists(held)))
        .order_by("-has_work", "name")
    )
    for project in projects:
        if project.has_work and not project.holds and closed_rules(project, memberships.get(project.pk)):
            project.has_work = (
                Comparison.objects.filter(allotted_to(project, user), purpose=Purpose.WORK, project=project)
                .filter(~Exists(spent), open_slots__gt=0)
                .exists()
            )
    projects.sort(key=lambda project: not project.has_work)
    days = [project.pk for project in projects]
    by_day = cached(lambda: _annotations_by_day(projects), "annotations on home", *days)
    mine = _annotations_today(projects, user)
    counted = {
        project.pk for project in [candidate for candidate in projects if candidate.has_work][:_COUNTED]
    }
    return [
        HomeRow(
            project=project,
            role=memberships[project.pk].get_role_display() if project.pk in memberships else "",
            is_manager=access.allows(user, memberships.get(project.pk), Role.MANAGER),
            has_work=project.has_work,
            left=_left(project, user) if project.pk in counted else None,
            today=mine.get(project.pk, 0),
            recent=sum(by_day[project.pk]),
            bars=tuple(bars(by_day[project.pk], width=120, height=32)),
        )
        for project in projects
    ]


def _left(project: Project, user: User) -> int:
    """Return what waits, as the labelling screen counts it."""
    progress, _pace = progress_and_pace(project, user, access.round_of_work(project, user))
    return progress.left


def _annotations_today(projects: Sequence[Project], user: User) -> dict[int, int]:
    midnight = timezone.localtime().replace(hour=0, minute=0, second=0, microsecond=0)
    counted = Judgment.everything.filter(
        comparison__project__in=projects, annotator=user, created_at__gte=midnight, supersedes__isnull=True
    )
    return dict(counted.order_by().values_list("comparison__project").annotate(Count("pk")))


def _annotations_by_day(projects: Sequence[Project]) -> dict[int, list[int]]:
    first = timezone.localdate() - timedelta(days=_DAYS - 1)
    counted = (
        current_of_people()
        .filter(
            comparison__project__in=projects,
            created_at__gte=timezone.now() - timedelta(days=_DAYS),
        )
        .annotate(day=TruncDate("created_at"))
        .values_list("comparison__project", "day")
        .annotate(Count("pk"))
        .order_by()
    )
    days: defaultdict[int, dict[date, int]] = defaultdict(dict)
    for project, day, count in counted:
        days[project][day] = count
    return {
        project.pk: [days[project.pk].get(first + timedelta(days=number), 0) for number in range(_DAYS)]
        for project in projects
    }
