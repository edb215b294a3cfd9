"""Forecast of the day on which all open assignments are done, with an interval. Loads NumPy when computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum

from django.db.models import Count, Q, Sum
from django.db.models.functions import TruncDate
from django.utils import timezone

from annotation.choices import AssignmentState, Purpose
from annotation.models import Assignment, Comparison, Project
from annotation.selectors.cached_counts import cached
from annotation.selectors.eligibility import today_starts

MOST_DAYS = 56
"""Full days before today that a forecast rests on."""
FEWEST_DAYS = 7
FEWEST_BUSY_DAYS = 3
NARROW_UNTIL = 14
"""Days from which on the interval holds what it says: 91 to 95 % in simulations, 84 % with a week."""
WEEKS_FROM = 28
"""Days from which on the pattern of the week counts."""
HORIZON = 730
"""Days after which a forecast ends."""
DRAWS = 2000
SEED = 20131


class NoForecast(StrEnum):
    """Reasons for the absence of a forecast."""

    NOTHING_OPEN = "nothing-open"
    TOO_FEW = "too-few"


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """The day on which the last open assignment is done; or why nothing can be said."""

    remaining: int
    days: int
    """Full days that it rests on."""
    per_day: float | None
    """Mean of those days."""
    by_weekdays: bool = False
    """The pattern of the week counts."""
    expected: date | None = None
    """Median; None where that is beyond the horizon."""
    low: date | None = None
    high: date | None = None
    """Ends of the 95 % interval; None where they are beyond the horizon."""
    missing: NoForecast | None = None

    @property
    def is_early(self) -> bool:
        """Whether it rests on so few days that its interval is too narrow."""
        return self.days < NARROW_UNTIL


def forecast_of(project: Project) -> Forecast:
    """Return the forecast of a project, from the daily counts of its last eight weeks. Three queries."""
    return cached(lambda: _forecast(project), "forecast", project.pk)


def _forecast(project: Project) -> Forecast:
    today = timezone.localdate(timezone=timezone.get_default_timezone())
    work = Comparison.objects.filter(project=project, purpose=Purpose.WORK)
    open_slots = work.filter(open_slots__gt=0).aggregate(slots=Sum("open_slots"))["slots"] or 0
    assigned = Assignment.objects.filter(comparison__in=work, slot__isnull=False)
    remaining = open_slots + assigned.filter(state=AssignmentState.LEASED).count()
    by_day: dict[date, int] = dict(
        assigned.filter(
            ~Q(annotator__is_machine=True),
            state=AssignmentState.SUBMITTED,
            closed_at__gte=today_starts() - timedelta(days=MOST_DAYS),
            judgments__supersedes__isnull=True,
            # A file or a bulk answer brings hundreds in a minute.
            judgments__imported_from__isnull=True,
            judgments__in_bulk=False,
        )
        .annotate(day=TruncDate("closed_at", tzinfo=timezone.get_default_timezone()))
        .order_by()
        .values_list("day")
        .annotate(Count("pk"))
    )
    first = min(by_day, default=today)
    history = [by_day.get(first + timedelta(days=number), 0) for number in range((today - first).days)]
    per_day = sum(history) / len(history) if history else None
    if not remaining:
        return Forecast(remaining=0, days=len(history), per_day=per_day, missing=NoForecast.NOTHING_OPEN)
    if len(history) < FEWEST_DAYS or sum(count > 0 for count in history) < FEWEST_BUSY_DAYS:
        return Forecast(remaining=remaining, days=len(history), per_day=per_day, missing=NoForecast.TOO_FEW)
    ends = sorted(days_needed(history, remaining, done_today=by_day.get(today, 0)))

    def day(share: float) -> date | None:
        needed = ends[min(int(share * len(ends)), len(ends) - 1)]
        return today + timedelta(days=needed) if needed < HORIZON else None

    return Forecast(
        remaining=remaining,
        days=len(history),
        per_day=per_day,
        by_weekdays=len(history) >= WEEKS_FROM,
        expected=day(0.5),
        low=day(0.025),
        high=day(0.975),
    )


def days_needed(
    history: Sequence[int], remaining: int, *, done_today: int = 0, draws: int = DRAWS, seed: int = SEED
) -> list[int]:
    """Return in how many days the rest is done, 0 for today, in each of `draws` futures.

    history: annotations of each past day, the last one yesterday. A future has a pace of its own, the mean of
    n − 1 of the n days drawn with replacement (as uncertain as their mean; Rao & Wu 1988), and days drawn
    around it. From four weeks on the pattern of the week is taken out before and put in again, so that
    weekends fall on weekends. Days are taken as independent. `HORIZON` stands for later.
    """
    import numpy as np

    counts = np.array(history, dtype=np.float64)
    days = np.arange(len(counts) + HORIZON)
    usual = np.full(len(days), counts.mean())
    if len(counts) >= WEEKS_FROM:
        by_weekday = np.array([counts[weekday::7].mean() for weekday in range(7)])
        usual = by_weekday[days % 7]
    past, future = usual[: len(counts)], usual[len(counts) :]
    busy = past > 0
    if not busy.any():
        return [HORIZON] * draws
    drawn_from = counts[busy] / past[busy]
    weights = past[busy]
    size = len(drawn_from)
    generator = np.random.default_rng(seed)
    again = generator.integers(size, size=(draws, size - 1))
    pace = (drawn_from * weights)[again].sum(axis=1) / weights[again].sum(axis=1)
    made = drawn_from[generator.integers(size, size=(draws, HORIZON))] * future * pace[:, None]
    # What was done today is done already: the draw of today holds it.
    made[:, 0] = np.maximum(made[:, 0] - done_today, 0)
    # Less a hair: ten tenths may be a little less than one.
    is_done = made.cumsum(axis=1) >= remaining - 1e-6
    needed: list[int] = np.where(is_done.any(axis=1), is_done.argmax(axis=1), HORIZON).tolist()
    return needed
