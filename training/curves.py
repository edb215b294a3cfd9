"""A run's metrics as curves: numbers become the points of an SVG. Knows no database."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from training.metrics import COUNT, HIGH, HIGH_STEP, LOW, LOW_STEP, NULLS, SUM, Cell, Folded, fold_rows

WIDTH = 320
HEIGHT = 96
MOST_LINES = 4
"""So many runs are drawn in one box: so many kinds of dashes can be told apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One metric over the steps of a run, ready to be drawn in a box of WIDTH by HEIGHT."""

    name: str
    segments: tuple[str, ...]
    """`x,y` pairs for SVG polylines; the line is broken where numbers are missing."""
    first: float
    last: float
    lowest: float
    highest: float
    last_step: int
    end: tuple[float, float]
    """Where the curve ends: a dot is drawn there."""
    kind: int = 0
    """Which kind of line, 0 to MOST_LINES − 1."""
    of: str = ""
    """The run's name, where several are drawn."""

    @property
    def points(self) -> str:
        """All points, as if nothing were missing."""
        return " ".join(self.segments)

    @property
    def title(self) -> str:
        """The metric's name as people write it."""
        return title_of(self.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One metric of one or several runs on the same axes."""

    name: str
    lines: tuple[Curve, ...]
    lowest: float
    highest: float

    @property
    def title(self) -> str:
        """The metric's name as people write it."""
        return title_of(self.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Box:
    """The stretch of steps and values that a plot shows."""

    first_step: int
    steps: int
    lowest: float
    highest: float

    def place(self, step: int, value: float) -> tuple[float, float]:
        x = (step - self.first_step) / self.steps * WIDTH
        if self.highest == self.lowest:
            return round(x, 1), HEIGHT / 2
        # Halves: the span of the two greatest floats of different sign is infinite.
        share = (value / 2 - self.lowest / 2) / (self.highest / 2 - self.lowest / 2)
        return round(x, 1), round(HEIGHT - share * HEIGHT, 1)


def title_of(name: str) -> str:
    """A metric's name as people write it."""
    return name.replace("_", " ").replace("/", ", ")


def curves(rows: Sequence[Mapping[str, Any]], names: Sequence[str], *, total_steps: int = 0) -> list[Curve]:
    """The curves of those `names` that at least one row has, in the order of `names`.

    `total_steps` fixes the right edge, so that a curve grows into its box while a run goes on.
    """
    drawn = (curve(rows, name, total_steps=total_steps) for name in names)
    return [one for one in drawn if one is not None]


def curve(rows: Sequence[Mapping[str, Any]], name: str, *, total_steps: int = 0) -> Curve | None:
    """The curve of one metric; None where no row has a finite value of it."""
    drawn = panel([("", fold_rows(rows), total_steps)], name)
    return drawn.lines[0] if drawn else None


def panel(runs: Sequence[tuple[str, Folded, int]], name: str) -> Panel | None:
    """One metric of runs given as (name, metrics, steps in all); None where none has a number of it."""
    shown = [
        (kind, of, folded, total, cells)
        for kind, (of, folded, total) in enumerate(runs)
        if (cells := [cell for _, cell in sorted(folded.cells.get(name, {}).items()) if cell[COUNT]])
    ]
    if not shown:
        return None
    first = min(min(cells[0][LOW_STEP], cells[0][HIGH_STEP]) for *_, cells in shown)
    last = max(max(total, folded.latest_step[name]) for _, _, folded, total, _ in shown)
    box = _Box(
        first_step=first,
        steps=max(last, first + 1) - first,
        lowest=min(cell[LOW] for *_, cells in shown for cell in cells),
        highest=max(cell[HIGH] for *_, cells in shown for cell in cells),
    )
    lines = tuple(_line(name, kind, of, folded, box) for kind, of, folded, _, _ in shown)
    return Panel(name=name, lines=lines, lowest=box.lowest, highest=box.highest)


def _line(name: str, kind: int, of: str, folded: Folded, box: _Box) -> Curve:
    stretches = [
        [one for cell in stretch for one in _corners(cell)] for stretch in stretches_of(folded, name)
    ]
    cells = [cell for cell in folded.cells[name].values() if cell[COUNT]]
    end = folded.latest_step[name], folded.latest[name]
    if stretches[-1][-1] != end:
        stretches[-1].append(end)
    return Curve(
        name=name,
        kind=kind,
        of=of,
        segments=tuple(
            " ".join("{},{}".format(*box.place(*one)) for one in stretch) for stretch in stretches
        ),
        first=stretches[0][0][1],
        last=folded.latest[name],
        lowest=min(cell[LOW] for cell in cells),
        highest=max(cell[HIGH] for cell in cells),
        last_step=folded.latest_step[name],
        end=box.place(*end),
    )


def stretches_of(folded: Folded, name: str) -> list[list[Cell]]:
    """A metric's cells in order, cut where numbers are missing."""
    found: list[list[Cell]] = [[]]
    for _, cell in _cells_and_gaps(folded, name):
        if cell is None:
            found.append([])
        else:
            found[-1].append(cell)
    return [stretch for stretch in found if stretch]


def _cells_and_gaps(folded: Folded, name: str, *, from_bucket: int = 0) -> Iterator[tuple[int, Cell | None]]:
    """The buckets with a metric's cells in order, None where the line is broken.

    That is where the trainer wrote that it had no number, and for a metric that most rows have, wherever
    rows lack it. An evaluation every hundred steps has no gaps between.
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


def _corners(cell: Cell) -> Iterator[tuple[int, float]]:
    """The least and the greatest value of a bucket, in the order of their steps."""
    low, high = (cell[LOW_STEP], cell[LOW]), (cell[HIGH_STEP], cell[HIGH])
    yield min(low, high)
    if low[0] != high[0]:
        yield max(low, high)


def points_since(folded: Folded, name: str, *, since: int) -> list[list[Any]]:
    """What a script draws of a metric, from the bucket of step `since` on: a list for each bucket with rows,
    [step of the least, least, step of the greatest, greatest, mean], and [first step] where the line is
    broken."""
    return [
        [cell[LOW_STEP], cell[LOW], cell[HIGH_STEP], cell[HIGH], cell[SUM] / cell[COUNT]]
        if cell
        else [bucket * folded.width]
        for bucket, cell in _cells_and_gaps(folded, name, from_bucket=since // folded.width)
    ]
