"""Annotations of a project over the last days: by day, by annotator, and added up against the target."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from math import ceil

from django.db.models import Count
from django.db.models.functions import TruncDate
from django.urls import reverse
from django.utils import timezone

from annotation.models import Project, User
from annotation.selectors.cached_counts import cached
from annotation.selectors.judged import current_in
from annotation.statistics.plots import Bar, bars

DAYS = 30
_RECENT = 7
"""The pace that tells when the target is reached is the mean of so many days."""
_ANNOTATORS = 8
_WIDTH, _HEIGHT = 300, 72


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """Annotations of a day, with its bar."""

    day: date
    count: int
    bar: Bar


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatorDays:
    """Annotations of a person over the days shown, with their bars."""

    name: str
    address: str
    count: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnUp:
    """Annotations added up day by day, drawn against the number that is wanted."""

    line: str
    """Path of the sum, in a box of 300 × 72."""
    target: float
    """Height of the target in that box, from the top."""
    done: int
    wanted: int
    reached_on: date | None
    """Day on which the target is reached at the pace of the last week; None without pace, or once reached."""

    @property
    def left(self) -> int:
        """Return the annotations that are still wanted."""
        return max(self.wanted - self.done, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationDays:
    """Annotations of the last `DAYS` days."""

    days: tuple[Day, ...]
    annotators: tuple[AnnotatorDays, ...]
    """The people with the most annotations, most first."""
    further_annotators: int

    @property
    def count(self) -> int:
        """Return the annotations of all days together."""
        return sum(day.count for day in self.days)


def annotation_days(project: Project) -> AnnotationDays:
    """Return the annotations of a project by day and by annotator; of a large one as of some minutes ago."""
    first = timezone.localdate() - timedelta(days=DAYS - 1)
    shown = [first + timedelta(days=number) for number in range(DAYS)]
    total, by_annotator = cached(lambda: _counted(project), "annotations by day", project.pk)
    people = User.objects.filter(pk__in=by_annotator, is_machine=False).in_bulk()
    ordered = sorted(people.values(), key=lambda user: (-sum(by_annotator[user.pk].values()), str(user)))
    values = [total.get(day, 0) for day in shown]
    return AnnotationDays(
        days=tuple(
            Day(day=day, count=value, bar=bar)
            for day, value, bar in zip(shown, values, bars(values, width=_WIDTH, height=_HEIGHT), strict=True)
        ),
        annotators=tuple(
            AnnotatorDays(
                name=str(user),
                address=reverse("annotator", args=[project.slug, user.pk]),
                count=sum(by_annotator[user.pk].values()),
                bars=tuple(bars([by_annotator[user.pk].get(day, 0) for day in shown], width=120, height=32)),
            )
            for user in ordered[:_ANNOTATORS]
        ),
        further_annotators=max(len(ordered) - _ANNOTATORS, 0),
    )


def _counted(project: Project) -> tuple[Mapping[date, int], Mapping[int, Mapping[date, int]]]:
    since = timezone.now() - timedelta(days=DAYS)
    rows = (
        current_in(project, None)
        .filter(created_at__gte=since)
        .annotate(day=TruncDate("created_at"))
        .values_list("annotator", "day")
        .annotate(Count("pk"))
        .order_by()
    )
    total: defaultdict[date, int] = defaultdict(int)
    by_annotator: defaultdict[int, dict[date, int]] = defaultdict(dict)
    for annotator, day, count in rows:
        total[day] += count
        by_annotator[annotator][day] = count
    return total, by_annotator


def burn_up(days: Sequence[Day], *, done: int, target: int) -> BurnUp | None:
    """Return the sum of annotations over `days`, which end today at `done`; None without a target."""
    if not target or not days:
        return None
    sums = [done]
    for day in reversed(days[1:]):
        sums.append(max(sums[-1] - day.count, 0))
    sums.reverse()
    highest = max(target, done)
    step = _WIDTH / max(len(sums) - 1, 1)
    places = [
        (round(index * step, 1), round(_HEIGHT * (1 - value / highest), 1))
        for index, value in enumerate(sums)
    ]
    pace = sum(day.count for day in days[-_RECENT:]) / min(_RECENT, len(days))
    left = target - done
    return BurnUp(
        line="M" + "L".join(f"{x:g},{y:g}" for x, y in places),
        target=round(_HEIGHT * (1 - target / highest), 1),
        done=done,
        wanted=target,
        reached_on=days[-1].day + timedelta(days=ceil(left / pace))
        if pace and 0 < left < 3650 * pace
        else None,
    )
