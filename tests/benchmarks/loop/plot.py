"""Draw the course of loops, a study of acquisition, or the power of a decision as SVG for the guide.

python -m tests.benchmarks.loop.plot loop FILE.svg RESULTS.json [RESULTS.json …]
python -m tests.benchmarks.loop.plot acquisition FILE.svg RESULTS.json SET
python -m tests.benchmarks.loop.plot arms FILE.svg RESULTS.json STUDY
python -m tests.benchmarks.loop.plot hour FILE.svg RESULTS.jsonl

The results of `hour` are what `python -m tests.benchmarks.decisions --part hour` prints.

Colours follow the page: the lines have classes, and a style in the file for light and dark.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from tests.benchmarks.loop.arms import interval

_WIDTH, _HEIGHT = 640.0, 320.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 190.0, 16.0, 44.0
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #333 }
.axis { stroke: #999; fill: none } .even { stroke: #bbb; stroke-dasharray: 4 4 }
.line { fill: none; stroke-width: 2 } .band { opacity: .15; stroke: none }
.c0 { stroke: #1d4ed8; fill: #1d4ed8 } .c1 { stroke: #b45309; fill: #b45309 }
.c2 { stroke: #15803d; fill: #15803d } .c3 { stroke: #a21caf; fill: #a21caf }
.c4 { stroke: #0e7490; fill: #0e7490 } .c5 { stroke: #be123c; fill: #be123c }
.c6 { stroke: #4d7c0f; fill: #4d7c0f } .c7 { stroke: #555; fill: #555 }
.line { fill: none } text.label { stroke: none }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .axis { stroke: #777 } .even { stroke: #555 } }
"""


@dataclass(frozen=True, slots=True)
class Line:
    """One line with its name, and an interval where it has one."""

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()
    """(x, low, high)"""


def drawn(
    lines: Sequence[Line], *, across: str, up: str, low: float, high: float, even: float | None = None
) -> str:
    """Return lines in one box as SVG."""
    most = max(x for line in lines for x, _ in line.points)
    least = min(x for line in lines for x, _ in line.points)

    def place(x: float, y: float) -> str:
        width = _WIDTH - _LEFT - _RIGHT
        share = (x - least) / (most - least) if most > least else 0.5
        height = (_HEIGHT - _TOP - _BOTTOM) * (1 - (min(max(y, low), high) - low) / (high - low))
        return f"{_LEFT + width * share:.1f},{_TOP + height:.1f}"

    parts = [f'<path class="axis" d="M{place(least, high)}L{place(least, low)}L{place(most, low)}"/>']
    if even is not None:
        parts.append(f'<path class="even" d="M{place(least, even)}L{place(most, even)}"/>')
    for tenth in range(round(10 * low), round(10 * high) + 1):
        value = tenth / 10
        x, level = place(least, value).split(",")
        parts.append(f'<text x="{float(x) - 8}" y="{float(level) + 4}" text-anchor="end">{value:.0%}</text>')
    for value in (least, most):
        x, _ = place(value, low).split(",")
        parts.append(f'<text x="{x}" y="{_HEIGHT - 24}" text-anchor="middle">{value:g}</text>')
    middle = _LEFT + (_WIDTH - _LEFT - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(across)}</text>')
    ends = sorted(range(len(lines)), key=lambda index: -lines[index].points[-1][1])
    rows = {index: row for row, index in enumerate(ends)}
    for index, line in enumerate(lines):
        colour = f"c{index % 8}"
        if line.band:
            edge = [place(x, top) for x, _, top in line.band] + [
                place(x, b) for x, b, _ in reversed(line.band)
            ]
            parts.append(f'<path class="band {colour}" d="M{"L".join(edge)}Z"/>')
        path = "L".join(place(x, y) for x, y in line.points)
        parts.append(f'<path class="line {colour}" style="fill:none" d="M{path}"/>')
        y = _TOP + 14 + 19 * rows[index]
        start = _WIDTH - _RIGHT + 14
        parts.append(f'<path class="line {colour}" d="M{start},{y - 4}h16"/>')
        parts.append(f'<text class="label" x="{start + 22}" y="{y}">{escape(line.name)}</text>')
    box = f"0 0 {_WIDTH:g} {_HEIGHT:g}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img" aria-label="{escape(up)}">'
        f"<style>{_STYLE}</style>{''.join(parts)}</svg>\n"
    )


def loop_lines(files: Sequence[Path]) -> list[Line]:
    """Return the true win rate against the base after each round, a line for each arm.

    Of several seeds the mean with its 95 % interval over seeds, of one seed the interval over prompts.
    """
    arms: dict[str, list[list[dict[str, float]]]] = {}
    for file in files:
        for course in json.loads(file.read_text())["courses"]:
            arm = course["arm"]
            differing = [arm[name] for name, usual in _USUAL.items() if arm[name] != usual]
            label = ", ".join([arm["scene"], arm["policy"].upper(), *differing]).replace("_", " ")
            rates = [round_["true_win_rate_base"] for round_ in course["rounds"]]
            arms.setdefault(label, []).append(rates)
    return [_arm_line(name, courses) for name, courses in arms.items()]


def _arm_line(name: str, courses: Sequence[Sequence[dict[str, float]]]) -> Line:
    points, band = [(0.0, 0.5)], [(0.0, 0.5, 0.5)]
    # Of courses that were cut off, only the rounds that all of them had.
    for number, rates in enumerate(zip(*courses, strict=False), start=1):
        values = [rate["value"] for rate in rates]
        low, high = rates[0]["low"], rates[0]["high"]
        mean = values[0]
        if len(values) > 1:
            mean, low, high = interval(values)
        points.append((number, mean))
        band.append((number, low, high))
    return Line(name if len(courses) == 1 else f"{name} ({len(courses)} seeds)", points, band)


_USUAL = {"acquisition": "age", "shape": "pairs"}
"""Settings of an arm that its label leaves out."""


def acquisition_lines(file: Path, name: str) -> list[Line]:
    """Return the held-out accuracy by labels, a line for each strategy."""
    strategies = json.loads(file.read_text())["sets"][name]["strategies"]
    return [
        Line(strategy.replace("_", " "), list(zip(course["labels"], course["accuracy"], strict=True)))
        for strategy, course in strategies.items()
    ]


def arm_lines(file: Path, name: str) -> list[Line]:
    """Return the accuracy by annotators' hours with its interval, a line for each arm."""
    study = json.loads(file.read_text())["studies"][name]
    return [
        Line(
            arm,
            [(hours, mean) for hours, (mean, _, _) in zip(study["hours"], rows, strict=True)],
            [(hours, low, high) for hours, (_, low, high) in zip(study["hours"], rows, strict=True)],
        )
        for arm, rows in study["arms"].items()
    ]


def hour_lines(file: Path) -> list[Line]:
    """Return the share of rounds promoted within a first hour's answers, by true win rate, a line for each
    share of ties, with its 95 % interval (Wald's)."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    by_ties: dict[float, list[tuple[float, float, float]]] = {}
    for row in rows:
        half = 1.96 * math.sqrt(row["promoted"] * (1 - row["promoted"]) / row["rounds"])
        by_ties.setdefault(row.get("tie_rate", 0.0), []).append((row["win_rate"], row["promoted"], half))
    return [
        Line(
            f"{ties:.0%} ties" if ties else "no ties",
            [(rate, share) for rate, share, _ in points],
            [(rate, share - half, share + half) for rate, share, half in points],
        )
        for ties, points in by_ties.items()
    ]


def main() -> None:
    """Write one picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["loop", "acquisition", "arms", "hour"])
    parser.add_argument("file", type=Path)
    parser.add_argument("results", nargs="+")
    options = parser.parse_args()
    if options.what == "loop":
        lines = loop_lines([Path(path) for path in options.results])
        svg = drawn(lines, across="round", up="True win rate against the base", low=0.4, high=1.0, even=0.5)
    elif options.what == "arms":
        lines = arm_lines(Path(options.results[0]), options.results[1])
        svg = drawn(lines, across="annotators' hours", up="Accuracy against the truth", low=0.7, high=1.0)
    elif options.what == "hour":
        lines = hour_lines(Path(options.results[0]))
        svg = drawn(lines, across="true win rate", up="Promoted within 25 answers", low=0.0, high=1.0)
    else:
        lines = acquisition_lines(Path(options.results[0]), options.results[1])
        svg = drawn(lines, across="labels", up="Accuracy on held-out pairs", low=0.5, high=1.0)
    options.file.write_text(svg)
    print(options.file)


if __name__ == "__main__":
    main()
