"""The Pareto front of runs that weigh several rewards differently: no more of one without less of another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

_SIDE, _EDGE = 360, 60
"""Width and height of the plot, and of the room for its axes, in pixels."""


def non_dominated(points: Sequence[Sequence[float]]) -> list[int]:
    """Places of the points that no other one is at least as good as in every figure and better in one.

    points: (N, D), more is better; equal points are kept all. Raises `ValueError` for a figure that is not
    finite and for points of different length.
    """
    if len({len(point) for point in points}) > 1:
        raise ValueError(f"points must have equally many figures; got {points}")
    if not all(math.isfinite(figure) for point in points for figure in point):
        raise ValueError(f"figures must be finite; got {points}")
    return [
        place for place, point in enumerate(points) if not any(_dominates(other, point) for other in points)
    ]


def _dominates(point: Sequence[float], other: Sequence[float]) -> bool:
    return all(a >= b for a, b in zip(point, other, strict=True)) and tuple(point) != tuple(other)


def front_svg(
    points: Sequence[tuple[float, float]], names: Sequence[str], front: Sequence[int], axes: tuple[str, str]
) -> str:
    """Points of two rewards as an SVG of its own: those of the front filled, and the numbers in titles.

    points: (x, y) of each run. names: of the runs. front: places of the runs on the front.
    """
    xs, ys = [x for x, _ in points], [y for _, y in points]
    shapes = []
    for place, ((x, y), name) in enumerate(zip(points, names, strict=True)):
        kind = "front" if place in front else "behind"
        left, top = _placed(x, xs), _EDGE // 2 + _SIDE - (_placed(y, ys) - _EDGE)
        shapes.append(
            f'<circle class="{kind}" cx="{left:.1f}" cy="{top:.1f}" r="5"><title>{escape(name)}: '
            f"{escape(axes[0])} {x:.4g}, {escape(axes[1])} {y:.4g}</title></circle>"
            f'<text x="{left + 8:.1f}" y="{top - 8:.1f}">{escape(name)}</text>'
        )
    bottom = _SIDE + _EDGE // 2
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIDE + 2 * _EDGE} {bottom + _EDGE}">',
            "<style>text{font:12px sans-serif}.front{fill:#4347c9}.behind{fill:none;stroke:#878994}"
            "path{stroke:#878994;fill:none}</style>",
            f'<path d="M{_EDGE},{_EDGE // 2}V{bottom}H{_SIDE + _EDGE}"/>',
            f'<text x="{_EDGE}" y="{bottom + 36}">{escape(axes[0])}: {min(xs):.4g} to {max(xs):.4g}</text>',
            f'<text x="8" y="16">{escape(axes[1])}: {min(ys):.4g} to {max(ys):.4g}</text>',
            *shapes,
            "</svg>\n",
        ]
    )


def _placed(value: float, among: Sequence[float]) -> float:
    """Pixels from the left edge; the middle where all values are one."""
    span = max(among) - min(among)
    return _EDGE + (_SIDE * (value - min(among)) / span if span else _SIDE / 2)
