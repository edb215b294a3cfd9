"""Lessons as a learner and their teacher see them: runs, curves, who has passed what."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Min, QuerySet

from annotation.models import Project, User
from annotation.statistics.plots import Dot, Line, Scatter, scatter
from training.contract.course import LESSONS, Lesson
from training.models import LessonRun

MOST_ROWS = 9
"""Points of a curve in its table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LessonRunView:
    """A run with its curve and the numbers of it."""

    run: LessonRun
    plot: Scatter | None
    rows: Sequence[tuple[float, Sequence[float | None]]]
    """Some steps, first and last among them, with the value of each line."""
    figure: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LessonView:
    """A lesson with the last run of each form by one learner."""

    lesson: Lesson
    equation: str
    sources: Sequence[tuple[str, int, str]]
    """File, first line, text."""
    labels: Sequence[str]
    plain: LessonRunView | None
    broken: LessonRunView | None
    passed_at: datetime | None

    @property
    def goes_on(self) -> bool:
        """Return whether a run waits or trains."""
        return any(view is not None and view.run.goes_on for view in (self.plain, self.broken))


def passing_runs() -> QuerySet[LessonRun]:
    """Return the runs by which lessons are passed."""
    return LessonRun.objects.filter(broken=False, is_kept=True)


def lessons_of(learner: User) -> Sequence[tuple[Lesson, datetime | None]]:
    """Return every lesson and when a learner first passed it."""
    passed = dict(
        passing_runs()
        .filter(created_by=learner)
        .values_list("lesson")
        .annotate(Min("finished_at"))
        .order_by()
    )
    return [(lesson, passed.get(lesson.slug)) for lesson in LESSONS]


def lesson_view(lesson: Lesson, learner: User) -> LessonView:
    """Return a lesson's page for a learner."""
    runs = LessonRun.objects.filter(created_by=learner, lesson=lesson.slug).order_by("-pk")
    plain, broken = (runs.filter(broken=form).first() for form in (False, True))
    passed = passing_runs().filter(created_by=learner, lesson=lesson.slug).aggregate(at=Min("finished_at"))
    # Both plots have the same axes: the difference is what the lesson shows.
    points = [point for run in (plain, broken) if run is not None for point in run.points]
    values = [value for _step, named in points for value in named.values()]
    steps = [step for step, _named in points]
    ranges = ((min(steps), max(steps)), (min(values), max(values))) if values else None
    return LessonView(
        lesson=lesson,
        equation=f"$${lesson.equation}$$",
        sources=[(shown.file, *shown.source()) for shown in lesson.shown],
        labels=list(lesson.lines.values()),
        plain=_run_view(lesson, plain, ranges),
        broken=_run_view(lesson, broken, ranges),
        passed_at=passed["at"],
    )


def _run_view(
    lesson: Lesson,
    run: LessonRun | None,
    ranges: tuple[tuple[float, float], tuple[float, float]] | None,
) -> LessonRunView | None:
    if run is None:
        return None
    lines = [
        Line(
            kind=kind,
            dots=tuple(Dot(x=step, y=values[name]) for step, values in run.points if name in values),
        )
        for kind, name in enumerate(lesson.lines)
    ]
    drawn = [line for line in lines if line.dots]
    by_step: dict[float, dict[str, float]] = {}
    for step, values in run.points:
        by_step.setdefault(step, {}).update(values)
    steps = sorted(by_step)
    places = sorted({round(place * (len(steps) - 1) / (MOST_ROWS - 1)) for place in range(MOST_ROWS)})
    return LessonRunView(
        run=run,
        plot=scatter(drawn, x_range=ranges[0], y_range=ranges[1]) if drawn and ranges else None,
        rows=[(steps[place], [by_step[steps[place]].get(name) for name in lesson.lines]) for place in places]
        if steps
        else [],
        figure=run.figures.get(lesson.claim.figure),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnerRow:
    """A member of a project and the lessons: when each was passed first, and the runs so far."""

    learner: User
    cells: Sequence[tuple[datetime | None, int]]
    passed: int


def class_of(project: Project) -> Sequence[LearnerRow]:
    """Return the members of a project with their lessons, those who passed most first."""
    members = User.objects.filter(memberships__project=project, is_active=True).distinct()
    counts: dict[tuple[int, str], int] = {}
    passed: dict[tuple[int, str], datetime] = {}
    runs = LessonRun.objects.filter(created_by__in=members, broken=False)
    for learner, lesson, kept, finished in runs.order_by("-pk").values_list(
        "created_by", "lesson", "is_kept", "finished_at"
    ):
        counts[learner, lesson] = counts.get((learner, lesson), 0) + 1
        if kept and finished:
            passed[learner, lesson] = finished
    rows = [
        LearnerRow(
            learner=member,
            cells=[
                (passed.get((member.pk, lesson.slug)), counts.get((member.pk, lesson.slug), 0))
                for lesson in LESSONS
            ],
            passed=sum((member.pk, lesson.slug) in passed for lesson in LESSONS),
        )
        for member in members
    ]
    return sorted(rows, key=lambda row: (-row.passed, str(row.learner)))
