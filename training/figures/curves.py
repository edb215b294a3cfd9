"""A run's metrics for charts and tables: titles, units, last values, points. Uses no database."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from training.choices import ChartGroup
from training.figures.folded_metrics import COUNT, HIGH, HIGH_STEP, LOW, LOW_STEP, NULLS, SUM, Cell, Folded

MOST_LINES = 6
"""Most runs in one chart: the number of dash patterns that can be distinguished."""
_NATS = re.compile(r"(^|_)(kl|entropy|log_ratio|log_loss|sampler_gap)(_|$)")
_TOKENS = re.compile(r"(^|_)(tokens|length)$")
_SECONDS = re.compile(r"^seconds(_|$)")


_GROUP_PATTERNS = {
    ChartGroup.HELD_OUT: re.compile(r"^held_out_"),
    ChartGroup.REWARD: re.compile(r"^(reward|watched)(/|_|$)"),
    ChartGroup.RESPONSES: re.compile(r"(^|_)(length|unfinished|tokens)$"),
    ChartGroup.POLICY: re.compile(
        r"(^|_)(kl|entropy|ratio|gap|clip_fraction|explained_variance|staleness|importance)(_|$)"
    ),
    ChartGroup.OBJECTIVE: re.compile(r"(^|_)(loss|accuracy|margin|gradient_norm|learning_rate)$"),
}


def group_of(name: str) -> ChartGroup:
    """Return the group of charts that a metric belongs to."""
    return next(
        (group for group, pattern in _GROUP_PATTERNS.items() if pattern.search(name)), ChartGroup.OTHER
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LastValue:
    """The last value of a metric in one run, and the range of all its values."""

    value: float
    step: int
    lowest: float
    highest: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A metric of one or several runs; None for a run without it."""

    name: str
    values: tuple[LastValue | None, ...]
    is_first: bool = True
    """True if its chart is visible, not folded away with all others."""

    @property
    def group(self) -> ChartGroup:
        """Return the group of charts that it belongs to."""
        return group_of(self.name)

    @property
    def title(self) -> str:
        """Return the metric's display name."""
        return self.name.replace("_", " ").replace("/", ", ")

    @property
    def unit(self) -> str:
        """Return the unit of its values; empty for shares and scores."""
        if _NATS.search(self.name):
            return _("nats")
        if _TOKENS.search(self.name):
            return _("tokens")
        return "s" if _SECONDS.search(self.name) else ""


def metric_of(folded: Sequence[Folded], name: str, *, is_first: bool = True) -> Metric:
    """Return one metric of runs with its last values."""
    return Metric(name=name, values=tuple(_last_value(run, name) for run in folded), is_first=is_first)


def _last_value(folded: Folded, name: str) -> LastValue | None:
    if name not in folded.latest:
        return None
    cells = [cell for cell in folded.cells[name].values() if cell[COUNT]]
    return LastValue(
        value=folded.latest[name],
        step=folded.latest_step[name],
        lowest=min(cell[LOW] for cell in cells),
        highest=max(cell[HIGH] for cell in cells),
    )


def points_since(folded: Folded, name: str, *, since: int) -> list[list[Any]]:
    """Return the points of a metric from the bucket of step `since` on.

    One list per bucket: [step of the minimum, minimum, step of the maximum, maximum, mean], or [first step]
    where the line is broken.
    """
    return [
        [cell[LOW_STEP], cell[LOW], cell[HIGH_STEP], cell[HIGH], cell[SUM] / cell[COUNT]]
        if cell
        else [bucket * folded.width]
        for bucket, cell in _cells_and_gaps(folded, name, from_bucket=since // folded.width)
    ]


def _cells_and_gaps(folded: Folded, name: str, *, from_bucket: int) -> Iterator[tuple[int, Cell | None]]:
    """Yield the buckets with a metric's cells in order, None where the line is broken.

    A line breaks where the trainer wrote no number, and for a metric that most rows have, wherever rows lack
    it. An evaluation every hundred steps causes no gaps.
    """
    cells = folded.cells.get(name, {})
    filled = sum(1 for cell in cells.values() if cell[COUNT])
    is_dense = 2 * filled > len(folded.rows)
    for bucket in sorted(folded.rows):
        cell = cells.get(bucket)
        if bucket < from_bucket:
            continue
        if cell is not None and cell[COUNT]:
            yield bucket, cell
        elif is_dense or (cell is not None and cell[NULLS]):
            yield bucket, None
