"""Numbers as places in an SVG. The numbers themselves always stand beside it as text."""

from collections.abc import Sequence
from dataclasses import dataclass

from annotation.agreement.estimate import Estimate

WIDTH = 100.0
BAR_HEIGHT = 60.0
_BAR_GAP = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """The scale that all intervals of one table share."""

    low: float
    high: float
    reference: float
    """Where the line is drawn: no agreement beyond chance, no bias."""

    def x(self, value: float) -> float:
        """The place of a value; what lies outside stands at the edge."""
        inside = min(max(value, self.low), self.high)
        return round((inside - self.low) / (self.high - self.low) * WIDTH, 2)

    @property
    def reference_x(self) -> float:
        """The place of the reference."""
        return self.x(self.reference)


COEFFICIENT = Axis(low=-1.0, high=1.0, reference=0.0)
SHARE = Axis(low=0.0, high=1.0, reference=0.5)


@dataclass(frozen=True, kw_only=True, slots=True)
class IntervalMark:
    """One value with its interval on an axis."""

    x: float
    low: float | None
    high: float | None
    reference: float


def interval_mark(estimate: Estimate, axis: Axis) -> IntervalMark | None:
    """Where the value and the ends of its interval stand; None for what has no value."""
    if estimate.value is None:
        return None
    return IntervalMark(
        x=axis.x(estimate.value),
        low=None if estimate.low is None else axis.x(estimate.low),
        high=None if estimate.high is None else axis.x(estimate.high),
        reference=axis.reference_x,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One bar of a row of bars in a box of WIDTH by BAR_HEIGHT."""

    x: float
    y: float
    width: float
    height: float


def bars(counts: Sequence[int]) -> list[Bar]:
    """One bar for each count, the highest as high as the box."""
    highest = max(counts, default=0) or 1
    step = WIDTH / max(len(counts), 1)
    return [
        Bar(
            x=round(place * step + step * _BAR_GAP / 2, 2),
            y=round(BAR_HEIGHT - count / highest * BAR_HEIGHT, 2),
            width=round(step * (1 - _BAR_GAP), 2),
            height=round(count / highest * BAR_HEIGHT, 2),
        )
        for place, count in enumerate(counts)
    ]
