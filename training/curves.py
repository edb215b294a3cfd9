"""A run's metrics as curves: numbers become the points of an SVG. Knows no database."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 320
HEIGHT = 96
_MOST_POINTS = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One metric over the steps of a run, ready to be drawn in a box of WIDTH by HEIGHT."""

    name: str
    points: str
    """`x,y` pairs for an SVG polyline."""
    first: float
    last: float
    lowest: float
    highest: float
    last_step: int
    end: tuple[float, float]
    """Where the curve ends: a dot is drawn there."""

    @property
    def title(self) -> str:
        """The metric's name as people write it."""
        return self.name.replace("_", " ").replace("/", ", ")


def curves(rows: Sequence[Mapping[str, Any]], names: Sequence[str], *, total_steps: int = 0) -> list[Curve]:
    """The curves of those `names` that at least one row has, in the order of `names`.

    `total_steps` fixes the right edge, so that a curve grows into its box while a run goes on.
    """
    drawn = (curve(rows, name, total_steps=total_steps) for name in names)
    return [one for one in drawn if one is not None]


def curve(rows: Sequence[Mapping[str, Any]], name: str, *, total_steps: int = 0) -> Curve | None:
    """The curve of one metric; None where no row has a finite value of it."""
    values = [
        (int(row["step"]), float(row[name]))
        for row in rows
        if isinstance(row.get(name), int | float) and math.isfinite(row[name])
    ]
    if not values:
        return None
    lowest, highest = min(value for _, value in values), max(value for _, value in values)
    span = (highest - lowest) or 1.0
    first_step = values[0][0]
    steps = max(total_steps, values[-1][0], first_step + 1) - first_step

    def place(step: int, value: float) -> tuple[float, float]:
        x = (step - first_step) / steps * WIDTH
        y = HEIGHT - (value - lowest) / span * HEIGHT if highest > lowest else HEIGHT / 2
        return round(x, 1), round(y, 1)

    # Every n-th point, and always the last one.
    stride = math.ceil(len(values) / _MOST_POINTS)
    kept = values[:: stride or 1]
    if kept[-1] != values[-1]:
        kept.append(values[-1])
    return Curve(
        name=name,
        points=" ".join(f"{x},{y}" for x, y in (place(*one) for one in kept)),
        first=values[0][1],
        last=values[-1][1],
        lowest=lowest,
        highest=highest,
        last_step=values[-1][0],
        end=place(*values[-1]),
    )
