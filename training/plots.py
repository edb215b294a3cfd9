"""Points, lines and intervals as the numbers of an SVG. Knows no database."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 320
HEIGHT = 160


@dataclass(frozen=True, kw_only=True, slots=True)
class Dot:
    """One measured point, with the 95 % interval of y where there is one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Path:
    """Points that belong together, in order. kind: which kind of line."""

    kind: int
    dots: tuple[Dot, ...]
    of: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnDot:
    """A point where it is drawn; y_low and y_high are the ends of its interval."""

    x: float
    y: float
    y_low: float | None
    y_high: float | None
    dot: Dot


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnPath:
    """A line and its points."""

    kind: int
    of: str
    points: str
    dots: tuple[DrawnDot, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scatter:
    """A plot in a box of WIDTH by HEIGHT."""

    paths: tuple[DrawnPath, ...]
    least_x: float
    most_x: float
    least_y: float
    most_y: float


def scatter(
    paths: Sequence[Path],
    *,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
) -> Scatter:
    """Draw paths on common axes, which reach over all points and intervals unless they are given."""
    dots = [dot for path in paths for dot in path.dots if math.isfinite(dot.x) and math.isfinite(dot.y)]
    ys = [value for dot in dots for value in (dot.y, dot.low, dot.high) if value is not None]
    left, right = x_range or (min(dot.x for dot in dots), max(dot.x for dot in dots))
    low, high = y_range or (min(ys), max(ys))

    def across(value: float) -> float:
        return round((value - left) / (right - left) * WIDTH, 1) if right > left else WIDTH / 2

    def down(value: float) -> float:
        return round(HEIGHT - (value - low) / (high - low) * HEIGHT, 1) if high > low else HEIGHT / 2

    drawn = []
    for path in paths:
        placed = tuple(
            DrawnDot(
                x=across(dot.x),
                y=down(dot.y),
                y_low=None if dot.low is None else down(dot.low),
                y_high=None if dot.high is None else down(dot.high),
                dot=dot,
            )
            for dot in path.dots
            if math.isfinite(dot.x) and math.isfinite(dot.y)
        )
        points = " ".join(f"{one.x},{one.y}" for one in placed)
        drawn.append(DrawnPath(kind=path.kind, of=path.of, points=points, dots=placed))
    return Scatter(paths=tuple(drawn), least_x=left, most_x=right, least_y=low, most_y=high)
