"""Curves of a run: metrics folded to a few points, and their charts."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.utils.translation import gettext as _

from training.choices import ChartGroup
from training.contract.run import METRICS_FILE

# ── Folded metrics ──
#
# The steps are cut into at most `MOST_BUCKETS` buckets of equal width, a power of two. A bucket keeps the
# minimum and maximum of each metric with their steps, so that no spike is lost, and the mean. The folded form
# is cached and grows with the file: nothing is read twice, except after a resumed run repeated steps.


MOST_BUCKETS = 256
"""A plot is some 300 pixels wide: more buckets could not be distinguished."""
_FORMAT = 1
_KEEP_AFTER_BYTES = 1 << 18
"""Bytes read after which the folded form is saved; fewer are read again each time."""
_LOOK_AT_THE_CLOCK = 50
"""Rows between checks of the clock."""

LOW, LOW_STEP, HIGH, HIGH_STEP, SUM, COUNT, NULLS = range(7)
Cell = list[Any]
"""One metric in one bucket: its minimum and maximum with their steps, sum and number of its values, and the
number of rows that had it without a number."""


@dataclass(slots=True)
class Folded:
    """The metrics of one run up to a byte of the file."""

    width: int = 1
    """Steps in a bucket; bucket b holds the steps from b · width on."""
    offset: int = 0
    """Bytes read."""
    is_behind: bool = False
    """True if more of the file remains to be read."""
    inode: int = 0
    first_step: int = -1
    last_step: int = -1
    rewinds: list[tuple[int, int]] = field(default_factory=list)
    """(byte, step): at that byte a resumed run began to repeat its steps from that step on."""
    rows: dict[int, int] = field(default_factory=dict)
    """Number of rows in each bucket."""
    cells: dict[str, dict[int, Cell]] = field(default_factory=dict)
    """By metric and bucket."""
    latest: dict[str, float] = field(default_factory=dict)
    """The last value of each metric."""
    latest_step: dict[str, int] = field(default_factory=dict)

    def add(self, row: Mapping[str, Any]) -> None:
        """Fold one row in; its step must be later than all before."""
        step = int(row["step"])
        if self.first_step < 0:
            self.first_step = step
        self.last_step = step
        while step // self.width - self.first_step // self.width >= MOST_BUCKETS:
            self._widen()
        bucket = step // self.width
        self.rows[bucket] = self.rows.get(bucket, 0) + 1
        for name, value in row.items():
            kind = type(value)
            if kind is float or kind is int:
                if name != "step":
                    self._count(name, bucket, step, value)
            elif value is None:
                self._count(name, bucket, step, math.nan)

    def _count(self, name: str, bucket: int, step: int, value: float) -> None:
        of_metric = self.cells.get(name)
        if of_metric is None:
            of_metric = self.cells[name] = {}
        cell = of_metric.get(bucket)
        if cell is None:
            cell = of_metric[bucket] = [None, 0, None, 0, 0.0, 0, 0]
        if not math.isfinite(value):
            cell[NULLS] += 1
            return
        self.latest[name] = value
        self.latest_step[name] = step
        if cell[COUNT] == 0:
            cell[:5] = value, step, value, step, value
        else:
            if value < cell[LOW]:
                cell[LOW], cell[LOW_STEP] = value, step
            elif value > cell[HIGH]:
                cell[HIGH], cell[HIGH_STEP] = value, step
            cell[SUM] += value
        cell[COUNT] += 1

    def _widen(self) -> None:
        """Double the width of the buckets."""
        self.width *= 2
        rows: dict[int, int] = {}
        for bucket, count in self.rows.items():
            rows[bucket // 2] = rows.get(bucket // 2, 0) + count
        self.rows = rows
        for name, cells in self.cells.items():
            merged: dict[int, Cell] = {}
            for bucket in sorted(cells):
                earlier = merged.get(bucket // 2)
                merged[bucket // 2] = _together(earlier, cells[bucket]) if earlier else cells[bucket]
            self.cells[name] = merged

    def to_json(self) -> dict[str, Any]:
        """Return the folded form as decoded JSON."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return {**plain, "format": _FORMAT, "most_buckets": MOST_BUCKETS}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Folded:
        """Return the folded form that `to_json` wrote. Raises for anything else."""
        if (values.pop("format"), values.pop("most_buckets")) != (_FORMAT, MOST_BUCKETS):
            raise ValueError("another format")
        values["rows"] = {int(bucket): count for bucket, count in values["rows"].items()}
        values["cells"] = {
            name: {int(bucket): cell for bucket, cell in cells.items()}
            for name, cells in values["cells"].items()
        }
        values["rewinds"] = [(byte, step) for byte, step in values["rewinds"]]
        return cls(**values)


def _together(earlier: Cell, later: Cell) -> Cell:
    """Return two cells merged."""
    low = min((c for c in (earlier, later) if c[COUNT]), key=lambda c: c[LOW], default=earlier)
    high = max((c for c in (earlier, later) if c[COUNT]), key=lambda c: c[HIGH], default=earlier)
    return [
        low[LOW],
        low[LOW_STEP],
        high[HIGH],
        high[HIGH_STEP],
        earlier[SUM] + later[SUM],
        earlier[COUNT] + later[COUNT],
        earlier[NULLS] + later[NULLS],
    ]


def folded_metrics(run_folder: Path, *, cache_file: Path, most_seconds: float = math.inf) -> Folded:
    """Return the metrics of a run so far, folded, reading only what was added since the last call.

    cache_file: of the folded form; it may be deleted. most_seconds: approximate time to read in this
    call; `is_behind` then asks for another call.
    """
    path = run_folder / METRICS_FILE
    try:
        stat = path.stat()
    except OSError:
        return Folded()
    folded = _remembered(cache_file)
    if folded is None or folded.inode != stat.st_ino or folded.offset > stat.st_size:
        folded = Folded(inode=stat.st_ino)
    began_at = folded.offset
    folded = _read_on(path, folded, time.monotonic() + most_seconds)
    if abs(folded.offset - began_at) > _KEEP_AFTER_BYTES or folded.is_behind:
        _remember(cache_file, folded)
    return folded


def _read_on(path: Path, folded: Folded, until: float) -> Folded:
    """Fold in the complete lines after `folded.offset`, until the end or the time `until`."""
    with path.open("rb") as stream:
        stream.seek(folded.offset)
        for number, line in enumerate(stream, start=1):
            if not line.endswith(b"\n"):
                # A line still being written: the next call reads it.
                break
            row = _row(line)
            if row is not None:
                if _goes_back(folded, row["step"]):
                    again = Folded(
                        inode=folded.inode, rewinds=[*folded.rewinds, (folded.offset, row["step"])]
                    )
                    return _read_on(path, again, until)
                if not _is_void(folded, row["step"]):
                    folded.add(row)
            folded.offset += len(line)
            if number % _LOOK_AT_THE_CLOCK == 0 and time.monotonic() > until:
                folded.is_behind = True
                return folded
    folded.is_behind = False
    return folded


def _goes_back(folded: Folded, step: int) -> bool:
    """Return whether a resumed run begins here to repeat steps, if not yet recorded."""
    return step <= folded.last_step and all(byte != folded.offset for byte, _ in folded.rewinds)


def _is_void(folded: Folded, step: int) -> bool:
    """Return whether this row's step was repeated later, which voids the row."""
    return any(folded.offset < byte and step >= from_step for byte, from_step in folded.rewinds)


def standing_rows(run_folder: Path, folded: Folded) -> Iterator[dict[str, Any]]:
    """Yield the rows that `folded` was made of, one per step, in order."""
    path = run_folder / METRICS_FILE
    if not path.is_file():
        return
    offset = 0
    with path.open("rb") as stream:
        for line in stream:
            if offset >= folded.offset:
                return
            row = _row(line)
            if row is not None and not any(
                offset < byte and row["step"] >= from_step for byte, from_step in folded.rewinds
            ):
                yield row
            offset += len(line)


def _row(line: bytes) -> dict[str, Any] | None:
    """Return a line's row; None for a line torn by a crash."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def _remembered(cache_file: Path) -> Folded | None:
    try:
        return Folded.from_json(json.loads(cache_file.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _remember(cache_file: Path, folded: Folded) -> None:
    """Save the folded form atomically. A full or read-only disk costs only time later."""
    with suppress(OSError):
        cache_file.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=cache_file.parent, prefix=f".{cache_file.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                json.dump(folded.to_json(), stream, separators=(",", ":"))
            os.replace(draft, cache_file)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise


# ── Charts ──


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
