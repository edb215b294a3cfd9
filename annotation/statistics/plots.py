"""Numbers as places in an SVG that the server draws. The numbers always stand beside it as text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from django.utils.safestring import SafeString

from annotation.text.rendering import attributes


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """A scale from `start` to `end`, which may be the smaller: SVG counts from the top."""

    start: float
    end: float
    length: float = 100.0
    reference: float = 0.5
    """A line is drawn there: no agreement beyond chance, no bias."""

    def place(self, value: float) -> float:
        """Return the place of a value; what lies outside stands at the edge."""
        if self.start == self.end:
            return self.length / 2
        share = (value - self.start) / (self.end - self.start)
        return round(min(max(0.0, share), 1.0) * self.length, 2)

    def interval(
        self, value: float | None, low: float | None, high: float | None
    ) -> "PlottedInterval | None":
        """Return the places of a value and of its interval; None for what has no value."""
        if value is None:
            return None
        return PlottedInterval(
            x=self.place(value),
            low=None if low is None else self.place(low),
            high=None if high is None else self.place(high),
            reference=self.place(self.reference),
        )


COEFFICIENT = Axis(start=-1.0, end=1.0, reference=0.0)
SHARE = Axis(start=0.0, end=1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlottedInterval:
    """A value with its interval, where an axis has them."""

    x: float
    low: float | None
    high: float | None
    reference: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One bar of a row of bars."""

    value: float
    x: float
    y: float
    width: float
    height: float

    @property
    def attributes(self) -> SafeString:
        """Where it stands, as attributes of SVG."""
        return attributes(x=self.x, y=self.y, width=self.width, height=self.height)


def bars(
    values: Sequence[float], *, width: float = 100.0, height: float = 60.0, is_signed: bool = False
) -> list[Bar]:
    """Return one bar for each value in a box of that size, the greatest as high as the box.

    Signed ones begin at half the height and go both ways.
    """
    greatest = max(map(abs, values), default=0.0) or 1.0
    base = height / 2 if is_signed else height
    step = width / max(len(values), 1)
    return [
        Bar(
            value=value,
            x=round((place + 0.125) * step, 2),
            y=round(base - max(value, 0.0) / greatest * base, 2),
            width=round(0.75 * step, 2),
            height=round(abs(value) / greatest * base, 2),
        )
        for place, value in enumerate(values)
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dot:
    """One measured point, with the 95 % interval of y where there is one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Points that belong together, in order. kind: its colour and dashes."""

    kind: int
    dots: tuple[Dot, ...]

    @property
    def points(self) -> str:
        """All points, as an SVG polyline has them."""
        return " ".join(f"{dot.x},{dot.y}" for dot in self.dots)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A vertical line at a moment, and what happened then."""

    x: float
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Scatter:
    """Lines of points in a box of 320 by 160, with the axes that put them there."""

    lines: tuple[Line, ...]
    x: Axis
    y: Axis
    marks: tuple[Mark, ...] = ()

    @property
    def y_middle(self) -> float:
        """Return the value half-way up."""
        return (self.y.start + self.y.end) / 2


def scatter(
    lines: Sequence[Line],
    *,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    marks: Sequence[Mark] = (),
) -> Scatter:
    """Draw lines on common axes, which reach over all points and intervals unless they are given.

    marks: within the horizontal axis.
    """
    finite = [
        replace(line, dots=tuple(dot for dot in line.dots if math.isfinite(dot.x) and math.isfinite(dot.y)))
        for line in lines
    ]
    dots = [dot for line in finite for dot in line.dots]
    xs = x_range or [dot.x for dot in dots]
    ys = y_range or [value for dot in dots for value in (dot.y, dot.low, dot.high) if value is not None]
    x = Axis(start=min(xs), end=max(xs), length=320.0)
    y = Axis(start=max(ys), end=min(ys), length=160.0)
    return Scatter(
        lines=tuple(replace(line, dots=tuple(_placed(dot, x, y) for dot in line.dots)) for line in finite),
        x=x,
        y=y,
        marks=tuple(replace(mark, x=x.place(mark.x)) for mark in marks),
    )


def _placed(dot: Dot, x: Axis, y: Axis) -> Dot:
    return Dot(
        x=x.place(dot.x),
        y=y.place(dot.y),
        low=None if dot.low is None else y.place(dot.low),
        high=None if dot.high is None else y.place(dot.high),
        label=f"{dot.label}: {dot.y:.4g}",
    )
