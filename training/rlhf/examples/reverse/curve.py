"""The curve of a task's runs: an SVG with one line for each seed, and the same as a table of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT, _MARGIN = 640, 360, 48
_COLOURS = ("#1f6feb", "#d1603d", "#2f855a", "#8a5cc2", "#b7791f")
Curve = Sequence[tuple[float, float]]
"""Points (step, share of right answers)."""


def draw(curves: Mapping[str, Curve], *, title: str, goal: float) -> str:
    """Return an SVG of shares over steps, with a dashed line where the goal is."""
    steps = max((step for curve in curves.values() for step, _ in curve), default=1.0) or 1.0
    lowest = min([goal, *(share for curve in curves.values() for _, share in curve)])
    floor = max(0.0, int(lowest * 10) / 10)

    def x(step: float) -> float:
        return round(_MARGIN + step / steps * (_WIDTH - 2 * _MARGIN), 1)

    def y(share: float) -> float:
        return round(_HEIGHT - _MARGIN - (share - floor) / (1 - floor) * (_HEIGHT - 2 * _MARGIN), 1)

    parts = [_text(_WIDTH / 2, _MARGIN / 2, title, "middle")]
    for tenth in range(round(floor * 10), 11):
        parts.append(_line(x(0), y(tenth / 10), x(steps), y(tenth / 10), "#8884"))
        parts.append(_text(_MARGIN - 6, y(tenth / 10) + 4, f"{tenth * 10} %", "end"))
    for quarter in range(5):
        parts.append(_text(x(steps * quarter / 4), _HEIGHT - _MARGIN + 18, f"{steps * quarter / 4:.0f}"))
    parts.append(_text(_WIDTH / 2, _HEIGHT - 8, "steps"))
    parts.append(_line(x(0), y(goal), x(steps), y(goal), "#888", "6 4"))
    for index, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        points = " ".join(f"{x(step)},{y(share)}" for step, share in curve)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(
            _text(_WIDTH - _MARGIN - 4, _HEIGHT - _MARGIN - 10 - 16 * index, name, "end", colour=colour)
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="12">\n'
        f"<title>{escape(title)}</title>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def smoothed(curve: Curve, window: int) -> list[tuple[float, float]]:
    """Return each value with the mean of the last `window` up to it."""
    values = [value for _, value in curve]
    return [
        (step, sum(values[max(0, index + 1 - window) : index + 1]) / min(window, index + 1))
        for index, (step, _) in enumerate(curve)
    ]


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows of the same columns as aligned text, the columns' names above."""
    columns = list(rows[0])
    lines = [columns, *([row[column] for column in columns] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    return "".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) + "\n"
        for line in lines
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, dashes: str = "") -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-dasharray="{dashes}"/>'


def _text(x: float, y: float, words: str, anchor: str = "middle", *, colour: str = "#666") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'
