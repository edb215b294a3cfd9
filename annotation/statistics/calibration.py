"""α of calibration sessions: before and after the talk, of retests, and over time. Loads NumPy."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _

from annotation.agreement import records
from annotation.agreement.coefficients import krippendorff_alpha
from annotation.agreement.estimate import Estimate
from annotation.agreement.records import Items, agreeing_share
from annotation.models import CalibrationAnswer, CalibrationItem, CalibrationSession, Judgment, Project
from annotation.selectors.calibration import items_of
from annotation.selectors.configuration import configuration_of
from annotation.selectors.judged import answers_of, judged_of, ratings_of
from annotation.statistics.compute import question_figures, rating_figures
from annotation.statistics.labels import REASONS
from annotation.statistics.plots import Dot, Line, Mark, Scatter, scatter


@dataclass(frozen=True, kw_only=True, slots=True)
class Versions:
    """The judgments of a revealed session that α is taken of, by comparison."""

    before: Items
    after: Items
    """Of the same assignments: at the close, or now."""


def versions_of(session: CalibrationSession) -> Versions:
    """Return the versions at the reveal, and what became of them. Who answered later is in neither."""
    rows = CalibrationAnswer.objects.filter(item__in=items_of(session), before__isnull=False)
    answers = list(rows.values_list("assignment_id", "before_id", "after_id"))
    standing = Judgment.everything.current().filter(assignment__in=[row[0] for row in answers])
    now = dict(standing.values_list("assignment_id", "pk"))
    after = [last or now[assignment] for assignment, _before, last in answers]
    return Versions(before=_items([row[1] for row in answers]), after=_items(after))


def _items(judgments: Iterable[int]) -> Items:
    # Not `by_comparison`: who had annotated a comparison before answered its retest.
    items: Items = defaultdict(list)
    for judgment in judged_of(Judgment.everything.filter(pk__in=list(judgments)), few=True):
        items[judgment.comparison].append(judgment)
    return dict(items)


def preference_alpha(items: Items) -> Estimate:
    """Krippendorff's α, nominal, of which of two responses is better, over all pairs of a session."""
    return krippendorff_alpha(
        [records.numbers(records.pair_units(item)) for item in items.values()], "nominal"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class AlphaRow:
    """α of one thing that was asked, before and after the talk."""

    label: str
    before: Estimate
    after: Estimate

    @property
    def shown(self) -> tuple[tuple[str, Estimate, str], ...]:
        """Name, estimate and why it has no value, of both."""
        return (
            ("before", self.before, why_absent(self.before)),
            ("after", self.after, why_absent(self.after)),
        )


def why_absent(estimate: Estimate) -> str:
    """Return in words why an estimate has no value; nothing where it has one."""
    return "" if estimate.missing is None else str(REASONS[estimate.missing])


def alpha_rows(session: CalibrationSession, versions: Versions) -> list[AlphaRow]:
    """Return α of the preference, of each criterion and of each question that has a value."""
    project = session.project
    rows = [
        AlphaRow(
            label=_("Preference"),
            before=preference_alpha(versions.before),
            after=preference_alpha(versions.after),
        )
    ]
    before, after = (_figures(project, items) for items in (versions.before, versions.after))
    for key, (label, estimate) in before.items():
        later = after[key][1]
        if estimate.items or later.items:
            rows.append(AlphaRow(label=label, before=estimate, after=later))
    return rows


def _figures(project: Project, items: Items) -> dict[tuple[str, str], tuple[str, Estimate]]:
    judgments = Judgment.everything.filter(
        pk__in=[judgment.pk for item in items.values() for judgment in item]
    )
    versions = {question.key: question.version for question in configuration_of(project).questions}
    figures = [
        *rating_figures(project, items, ratings_of(judgments)),
        *question_figures(project, items, answers_of(judgments, versions) if versions else ()),
    ]
    # One level of each: of ordered values the ordinal one.
    return {
        (figure.key, figure.criterion): (figure.criterion, figure.estimate)
        for figure in figures
        if figure.key != "rating-interval" and not _has_ordinal(figure.key, figure.criterion, figures)
    }


def _has_ordinal(key: str, criterion: str, figures: Sequence[object]) -> bool:
    return key == "question-interval" and any(
        getattr(other, "key", "") == "question-ordinal" and getattr(other, "criterion", "") == criterion
        for other in figures
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemRow:
    """One item of a revealed session in its list."""

    item: CalibrationItem
    annotations: int
    before: float | None
    """Share of pairs of people who agree on a pair of responses."""
    after: float | None


def item_rows(session: CalibrationSession, versions: Versions) -> list[ItemRow]:
    """Return the items, those with least agreement at the reveal first."""
    rows = [
        ItemRow(
            item=item,
            annotations=len(versions.before.get(item.comparison_id, ())),
            before=agreeing_share(versions.before.get(item.comparison_id, ())),
            after=agreeing_share(versions.after.get(item.comparison_id, ())),
        )
        for item in items_of(session).select_related("comparison__prompt")
    ]
    return sorted(rows, key=lambda row: (row.before is None, row.before or 0.0, row.item.index))


# α over time.


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """α of a session at one moment."""

    session: CalibrationSession
    at: datetime
    label: str
    estimate: Estimate

    @property
    def reason(self) -> str:
        """Why it has no value; nothing where it has one."""
        return why_absent(self.estimate)


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """α over the sessions of a project, with the moments at which its guidelines changed."""

    points: Sequence[Point]
    plot: Scatter | None
    """None before two points have a value."""
    guidelines: Sequence[tuple[int, datetime]] = ()
    """Version and moment of each change between the first point and the last."""
    first: datetime | None = None
    last: datetime | None = None
    """The ends of the plot."""


BEFORE, AFTER, RETEST = range(3)
"""Kinds of lines."""


def curve_of(project: Project, sessions: Sequence[CalibrationSession]) -> Curve:
    """Return α of revealed sessions over time: at the reveal, after the talk, and of retests."""
    lines: dict[int, list[Point]] = {BEFORE: [], AFTER: [], RETEST: []}
    revealed = [session for session in sessions if session.revealed_at is not None]
    for session in sorted(revealed, key=lambda session: session.pk):
        session.project = project
        versions = versions_of(session)
        kind = BEFORE if session.retest_of_id is None else RETEST
        label = _("before the talk") if kind == BEFORE else _("retest")
        at = session.revealed_at
        assert at is not None  # noqa: S101 - chosen above
        lines[kind].append(
            Point(session=session, at=at, label=label, estimate=preference_alpha(versions.before))
        )
        if session.closed_at is not None or versions.before != versions.after:
            lines[AFTER].append(
                Point(
                    session=session,
                    at=session.closed_at or timezone.now(),
                    label=_("after the talk"),
                    estimate=preference_alpha(versions.after),
                )
            )
    points = sorted((point for line in lines.values() for point in line), key=lambda point: point.at)
    measured = [point for point in points if point.estimate.value is not None]
    if len(measured) < 2:
        return Curve(points=points, plot=None)
    first, last = measured[0].at, measured[-1].at
    changes = [
        (version, at)
        for version, at in project.guidelines.order_by("version").values_list("version", "created_at")
        if version > 1 and first <= at <= last
    ]
    plot = scatter(
        [Line(kind=kind, dots=tuple(_dot(point) for point in line)) for kind, line in lines.items()],
        y_range=(min(0.0, *(_low(point) for point in measured)), 1.0),
        marks=[
            Mark(x=_day(at), label=_("Guidelines, version %(number)s") % {"number": version})
            for version, at in changes
        ],
    )
    return Curve(points=points, plot=plot, guidelines=changes, first=first, last=last)


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """The figures of a revealed session."""

    alphas: Sequence[AlphaRow]
    items: Sequence[ItemRow]
    curve: Curve
    """Of the session that it measures, or itself, and all retests."""


def results_of(session: CalibrationSession) -> Results:
    """Return α before and after the talk, agreement by item, and α over a session and its retests."""
    versions = versions_of(session)
    first = session.retest_of_id or session.pk
    family = CalibrationSession.objects.filter(Q(pk=first) | Q(retest_of=first))
    return Results(
        alphas=alpha_rows(session, versions),
        items=item_rows(session, versions),
        curve=curve_of(session.project, list(family)),
    )


def _dot(point: Point) -> Dot:
    estimate = point.estimate
    day = date_format(timezone.localtime(point.at), "SHORT_DATE_FORMAT")
    return Dot(
        x=_day(point.at),
        y=float("nan") if estimate.value is None else estimate.value,
        low=estimate.low,
        high=estimate.high,
        label=", ".join([point.session.name, point.label, day]),
    )


def _low(point: Point) -> float:
    estimate = point.estimate
    return min(value for value in (estimate.value, estimate.low, 0.0) if value is not None)


def _day(at: datetime) -> float:
    """Return the moment in days, as a place of the horizontal axis."""
    return at.timestamp() / 86_400
