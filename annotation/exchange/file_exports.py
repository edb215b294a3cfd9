"""Judgments leave in any format, with an account of what was left out beside them."""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from annotation.choices import CategoryScope
from annotation.errors import Refusal
from annotation.exchange.export_filters import ExportFilters
from annotation.exchange.formats.rondo_csv import header, safe
from annotation.exchange.formats.segments import step_granularity
from annotation.exchange.formats.writers import Dropped, Record, Scene, Tokens, Writer
from annotation.exchange.occurrences import Occurrences
from annotation.exchange.records import as_line, records
from annotation.models import Judgment, Project
from annotation.selectors import access

OnDrop = Callable[[Record, Dropped], None]


@dataclass(kw_only=True)
class Export:
    """One export: which judgments, in which format, and what came of it once it has been read to its end."""

    project: Project
    writer: Writer
    filters: ExportFilters = field(default_factory=ExportFilters)
    tokens: Tokens | None = None
    on_drop: OnDrop | None = None
    """Called with each thing that the format cannot carry, besides its being counted."""
    at_most: int | None = None
    """So many judgments are read, the oldest ones; None reads all."""
    judgments: int = 0
    by_programs: int = 0
    rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Reason → how often. The number of a completion in a reason is left away."""
    contexts_left_out: int = 0

    def selected(self) -> QuerySet[Judgment]:
        """Return the judgments of this export."""
        # Files to train on leave out what was judged with the names in sight, as snapshots do.
        return self.filters.judgments(self.project, unblinded=self.writer.name == "jsonl")

    def without_filters(self) -> QuerySet[Judgment]:
        """Return the judgments that there would be without filters."""
        return ExportFilters(machines=True).judgments(self.project, unblinded=self.writer.name == "jsonl")

    def row_stream(self) -> Iterator[dict[str, Any]]:
        """The rows, some at a time from the database: memory does not grow with their number."""
        judgments = self.selected()
        scene = scene_of(self.project, self.tokens)
        with Occurrences() as prompts:
            for record in records(judgments, at_most=self.at_most):
                self.judgments += 1
                self.by_programs += record["machine"]
                if self.writer.once_per_prompt and prompts.count(record["prompt"].encode()) > 1:
                    continue
                if record["context"] and not self.writer.carries_context:
                    self.contexts_left_out += 1
                yield from self._rows_of(record, scene)

    def _rows_of(self, record: Record, scene: Scene) -> Iterator[dict[str, Any]]:
        for row in self.writer.rows(record, scene):
            if isinstance(row, Dropped):
                self.dropped[_kind(row.reason)] += 1
                if self.on_drop:
                    self.on_drop(record, row)
            else:
                self.rows += 1
                yield row

    def text_stream(self) -> Iterator[str]:
        """The file, piece by piece, for every container but Parquet."""
        if self.writer.container == "csv":
            yield from _as_csv(self.row_stream(), header(scene_of(self.project, None)))
        elif self.writer.container == "json":
            yield from _as_list(self.row_stream())
        else:
            for row in self.row_stream():
                yield as_line(row)

    def manifest(self) -> dict[str, Any]:
        """Return contents, filters, and counts of dropped rows by reason."""
        return {
            "format": self.writer.name,
            "project": self.project.slug,
            "exported_at": timezone.now().isoformat(timespec="seconds"),
            "filters": {
                **self.filters.manifest(),
                "unblinded judgments": "marked by blind: false"
                if self.writer.name == "jsonl"
                else "left out",
                "judgments": "current ones of work: none superseded, no gold, no qualification, no retest",
            },
            **self._steps(),
            "judgments": self.judgments,
            "judgments by programs": self.by_programs,
            "rows": self.rows,
            "dropped": dict(sorted(self.dropped.items())),
            "judgments whose context passages the format has no place for": self.contexts_left_out,
        }

    def _steps(self) -> dict[str, Any]:
        if not self.writer.has_steps:
            return {}
        granularity = scene_of(self.project, self.tokens).step_granularity
        return {
            "steps": {
                "of completions with marked steps": "the marks correct-step and wrong-step",
                "of other marked completions": granularity,
                "granularity": "the finest over which an error category of the project is rewarded",
                "labelled false": "where a mark of an error shares a character with the step",
            }
        }


def require_rounds(*, project: Project, rounds: Sequence[int] | None) -> None:
    """Refuse rounds in which the project has no comparison, naming those that there are."""
    there = access.rounds_of(project)
    if missing := [str(number) for number in rounds or () if number not in there]:
        if there:
            message = ngettext(
                "The project %(project)s has no round %(missing)s. It has: %(rounds)s.",
                "The project %(project)s has no rounds %(missing)s. It has: %(rounds)s.",
                len(missing),
            )
        else:
            message = _("The project %(project)s has no rounds yet, so none with the number %(missing)s.")
        raise Refusal(
            "unknown_rounds",
            message,
            field="rounds",
            project=project.slug,
            missing=", ".join(missing),
            rounds=", ".join(map(str, there)),
        )


def scene_of(project: Project, tokens: Tokens | None) -> Scene:
    """Return the project's facts that writers need."""
    polarities = dict(project.categories.values_list("key", "polarity"))
    # Of missing information nothing is marked in the text.
    spans = project.categories.filter(scope=CategoryScope.SPAN)
    return Scene(
        slug=project.slug,
        polarities=polarities,
        step_granularity=step_granularity(dict(spans.values_list("key", "granularity")), polarities),
        criteria=tuple(f"{key}_{scale}" for key, scale in project.criteria.values_list("key", "scale")),
        tokens=tokens,
    )


def dropped_line(record: Record, dropped: Dropped) -> str:
    """One thing that was dropped, as a line of JSON."""
    row = {"judgment": record["judgment"], "reason": dropped.reason}
    if dropped.completion:
        row["completion"] = dropped.completion
    return as_line(row)


def write_parquet(rows: Iterator[dict[str, Any]], columns: Mapping[str, str], sink: Any) -> int:
    """Write rows to a path or a binary stream, a few thousand at a time; how many they were."""
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema([(name, _parquet_type(kind)) for name, kind in columns.items()])
    written = 0
    with pyarrow.parquet.ParquetWriter(sink, schema, compression="zstd") as file:
        while batch := list(islice(rows, 2_000)):
            file.write_table(pyarrow.Table.from_pylist(batch, schema=schema))
            written += len(batch)
    return written


def _parquet_type(kind: str) -> Any:
    import pyarrow

    if kind == "messages":
        message = [("role", pyarrow.string()), ("content", pyarrow.string())]
        return pyarrow.list_(pyarrow.struct(message))
    if kind.startswith("struct:"):
        names = kind.removeprefix("struct:").split(",")
        return pyarrow.struct([(name, pyarrow.string()) for name in names])
    return pyarrow.int64() if kind == "whole number" else pyarrow.string()


def _as_csv(rows: Iterator[dict[str, Any]], names: Sequence[str]) -> Iterator[str]:
    line = io.StringIO()
    # With this end of a line (RFC 4180) a cell that holds a return alone is quoted, too.
    writer = csv.writer(line, lineterminator="\r\n")

    def written(cells: Sequence[Any]) -> str:
        line.seek(0)
        line.truncate()
        writer.writerow(cells)
        return line.getvalue()

    # Spreadsheets take a file for UTF-8 by its mark alone.
    yield "\ufeff" + written(names)
    for row in rows:
        yield written([safe(row[name]) for name in names])


def _as_list(rows: Iterator[dict[str, Any]]) -> Iterator[str]:
    before = "[\n"
    for row in rows:
        yield before + json.dumps(row, ensure_ascii=False, allow_nan=False)
        before = ",\n"
    yield "\n]\n" if before == ",\n" else "[]\n"


def _kind(reason: str) -> str:
    return "tie within a ranking" if reason.startswith("tie with") else reason
