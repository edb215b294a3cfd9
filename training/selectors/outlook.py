"""Worth of a project's next annotations, by the learning curve that a worker measured last."""

from __future__ import annotations

from dataclasses import dataclass

from annotation.choices import FOLLOWS_HEAD
from annotation.models import AcquisitionFigures, Project
from annotation.statistics.plots import Axis

HARDLY = 0.005
"""Accuracy gain: if even the upper end of the interval is below this, stopping is suggested."""
_WIDTH, _HEIGHT = 300.0, 72.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """A project's learning curve in words and as a line."""

    rankings: int
    now: float
    next_100: tuple[float, float, float]
    """Accuracy that a hundred more annotations add, with a 95 % interval; in percentage points."""
    line: str
    """Path of the curve in a box of 300 by 72."""
    low: float
    high: float
    """Accuracy at the lower and the upper edge of that box."""
    hardly: bool
    """True if another hundred would hardly help."""
    asked: int | None
    """Annotations that the strategy asked for in the newest round; None where none is followed."""
    worth: int | None
    """Number of random annotations that hold as much information."""


def outlook_of(project: Project) -> Outlook | None:
    """Return the outlook as a worker kept it; None before there are enough annotations for a curve."""
    row = AcquisitionFigures.objects.filter(project=project).first()
    outlook = row.figures.get("outlook") if row else None
    if row is None or not outlook:
        return None
    value, low, high = outlook["next_100"]
    accuracies = [accuracy for _, accuracy in outlook["points"]]
    bottom, top = min(0.5, *accuracies), max(accuracies) + 0.02
    gain = row.figures.get("gain") if project.acquisition in FOLLOWS_HEAD else None
    return Outlook(
        rankings=outlook["rankings"],
        now=outlook["now"][0],
        next_100=(100 * value, 100 * low, 100 * high),
        line=_line(outlook["points"], bottom, top),
        low=bottom,
        high=top,
        hardly=high < HARDLY,
        asked=gain["asked"] if gain else None,
        worth=round(gain["worth"]) if gain else None,
    )


def _line(points: list[list[float]], bottom: float, top: float) -> str:
    across = Axis(start=0.0, end=float(points[-1][0]), length=_WIDTH)
    up = Axis(start=bottom, end=top, length=_HEIGHT)
    placed = [f"{across.place(size):.1f},{_HEIGHT - up.place(accuracy):.1f}" for size, accuracy in points]
    return "M" + "L".join(placed)
