"""Files of exports: which judgments, how many, in which format, written and kept."""

import csv
import io
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta
from itertools import chain, islice
from pathlib import Path
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from annotation.choices import CategoryScope, Split
from annotation.errors import Refusal
from annotation.exchange.formats.registry import WRITERS
from annotation.exchange.formats.rondo_csv import header, safe
from annotation.exchange.formats.writers import Dropped, Record, Scene, Tokens, Writer, step_granularity
from annotation.exchange.item_imports import Occurrences
from annotation.exchange.records import as_line, records
from annotation.models import Completion, Judgment, MissingInfo, Project, ReviewDecision, SpanFlag, User
from annotation.selectors import access
from annotation.selectors.allocation import tagged

# ── Which judgments ─────────────────────────────────────────────────────────────────────


MOST_COMPARISONS = 500
"""Comparisons that one export may name: they stand in its address."""

COMPARISONS = rf"^\d{{1,15}}(,\d{{1,15}}){{0,{MOST_COMPARISONS - 1}}}$"
"""Form of their ids: numbers with commas between."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportFilters:
    """The judgments of an export. What is empty restricts nothing."""

    rounds: Sequence[int] | None = None
    machines: bool = False
    """With the judgments of programs."""
    split: str = ""
    """`train` or `held-out`; empty for both."""
    annotator: str = ""
    """A pseudonym, as exports write it."""
    since: date | None = None
    until: date | None = None
    """The first and the last day on which a judgment was submitted, in the server's time zone."""
    tag: str = ""
    """A tag of the prompt."""
    category: str = ""
    """The key of a category that a span or missing information of the judgment has."""

    comparisons: Sequence[int] = ()
    """Ids of comparisons, `MOST_COMPARISONS` at most; empty for all."""

    def judgments(self, project: Project, *, unblinded: bool) -> QuerySet[Judgment]:
        """Return the current judgments that pass."""
        judgments = access.judgments_current(
            project, self.rounds, machines=self.machines, unblinded=unblinded
        )
        if self.split:
            judgments = judgments.filter(comparison__prompt__split=Split(self.split))
        if self.annotator:
            judgments = judgments.filter(annotator__pseudonym=self.annotator)
        if self.since:
            judgments = judgments.filter(created_at__gte=_midnight(self.since))
        if self.until:
            judgments = judgments.filter(created_at__lt=_midnight(self.until + timedelta(days=1)))
        if self.tag:
            judgments = judgments.filter(with_tag(self.tag))
        if self.category:
            judgments = judgments.filter(_with_category(self.category))
        if self.comparisons:
            judgments = judgments.filter(comparison__in=list(self.comparisons))
        return judgments

    def hidden(self, project: Project) -> int:
        """Return how many judgments a calibration session hides.

        Only what says nothing of a judgment narrows them: rounds, prompts and comparisons.
        """
        if not project.calibration_seals:
            return 0
        hidden = access.judgments_hidden(project, self.rounds)
        if self.split:
            hidden = hidden.filter(comparison__prompt__split=Split(self.split))
        if self.tag:
            hidden = hidden.filter(with_tag(self.tag))
        if self.comparisons:
            hidden = hidden.filter(comparison__in=list(self.comparisons))
        return hidden.count()

    def manifest(self) -> dict[str, Any]:
        """Return the filters as the manifest names them; those of later versions only where they restrict."""
        narrower = {
            "annotator": self.annotator,
            "since": self.since and self.since.isoformat(),
            "until": self.until and self.until.isoformat(),
            "tag": self.tag,
            "category": self.category,
            "comparisons": list(self.comparisons),
        }
        return {
            "rounds": list(self.rounds) if self.rounds is not None else "all",
            "split": self.split or "all",
            "programs that judge": self.machines,
            **{name: value for name, value in narrower.items() if value},
        }


def with_tag(tag: str) -> Q:
    """Judgments whose prompt has a tag. The only place of the export that knows where tags are stored."""
    return tagged("comparison__prompt__tags", tag)


def require_known(*, project: Project, filters: ExportFilters) -> None:
    """Refuse an annotator or category that the project does not have, and days in the wrong order."""
    if filters.since and filters.until and filters.since > filters.until:
        raise Refusal(
            "dates_reversed", _("The first day is after the last day. Exchange them."), field="until"
        )
    if filters.until and filters.until.year > 9000:
        raise Refusal("date_too_late", _("The last day is too far in the future."), field="until")
    if filters.category:
        keys = list(project.categories.order_by("position", "pk").values_list("key", flat=True))
        if filters.category not in keys:
            message = (
                _("The project has no category %(key)s. It has: %(keys)s.")
                if keys
                else _("The project has no category %(key)s, and no other.")
            )
            raise Refusal(
                "unknown_category", message, field="category", key=filters.category, keys=", ".join(keys)
            )
    if filters.annotator and not _has_judged(project, filters.annotator):
        raise Refusal(
            "unknown_annotator",
            _("No annotator of this project has the pseudonym %(name)s."),
            field="annotator",
            name=filters.annotator,
        )


def _has_judged(project: Project, pseudonym: str) -> bool:
    annotator = User.objects.filter(pseudonym=pseudonym).first()
    return annotator is not None and (
        project.memberships.filter(user=annotator).exists()
        or Judgment.objects.filter(annotator=annotator, comparison__project=project).exists()
    )


def _with_category(key: str) -> Q:
    # A category stands for its sub-categories.
    named = Q(category__key=key) | Q(category__parent__key=key)
    return Q(Exists(SpanFlag.objects.filter(named, judgment=OuterRef("pk")))) | Q(
        Exists(MissingInfo.objects.filter(judgment=OuterRef("pk"), category__key=key))
    )


def _midnight(day: date) -> datetime:
    return timezone.make_aware(datetime.combine(day, time.min))


# ── An export ───────────────────────────────────────────────────────────────────────────


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
        for row in chain(self.writer.rows(record, scene), self._parts_dropped(record)):
            if isinstance(row, Dropped):
                self.dropped[_kind(row.reason)] += 1
                if self.on_drop:
                    self.on_drop(record, row)
            else:
                self.rows += 1
                yield row

    def _parts_dropped(self, record: Record) -> Iterator[Dropped]:
        if record.get("answers") and not self.writer.carries_answers:
            yield Dropped("answers: the format has no place for additional questions")
        if record.get("review") and not self.writer.carries_reviews:
            yield Dropped("review: the format has no place for decisions of reviewers and returns")

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
            "hidden judgments of calibration sessions": self.filters.hidden(self.project),
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
        questions=dict(project.questions.order_by("position", "id").values_list("key", "kind")),
        questions_of_parts=frozenset(
            project.questions.filter(subject__in=("span", "step")).values_list("key", flat=True)
        ),
        has_completion_metadata=Completion.objects.filter(
            prompt__project=project, metadata__isnull=False
        ).exists(),
        has_decisions=ReviewDecision.objects.filter(review__comparison__project=project).exists(),
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


# ── How many ────────────────────────────────────────────────────────────────────────────


_READ = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportCounts:
    """Counts of an export. Of a large one only the first judgments are read, and `rows` is an estimate."""

    judgments: int
    spans: int
    rows: int
    is_estimate: bool
    dropped: tuple[tuple[str, int], ...]
    """Reason → number, among the judgments read."""
    read: int
    why_empty: str = ""
    hidden: int = 0
    """Left out, because a calibration session hides them."""


def count_export(export: Export) -> ExportCounts:
    """Count what an export would contain. Reads at most 500 judgments; the export is not used up."""
    selected = export.selected()
    judgments = selected.count()
    tried = replace(export, at_most=_READ, dropped=type(export.dropped)(), on_drop=None)
    for _row in islice(tried.row_stream(), _READ * 100):
        pass
    is_estimate = judgments > tried.judgments
    rows = round(tried.rows * judgments / tried.judgments) if tried.judgments else 0
    return ExportCounts(
        judgments=judgments,
        spans=_spans_of(selected),
        rows=rows,
        is_estimate=is_estimate,
        dropped=tuple(sorted(tried.dropped.items())),
        read=tried.judgments,
        why_empty=_why_empty(export, judgments, rows),
        hidden=export.filters.hidden(export.project),
    )


def _spans_of(selected: QuerySet[Judgment]) -> int:
    plain = selected.prefetch_related(None).order_by().values("pk")
    return SpanFlag.objects.filter(judgment__in=plain).count()


def _why_empty(export: Export, judgments: int, rows: int) -> str:
    """Return why nothing would be exported, and what to do; empty if there are rows."""
    if rows:
        return ""
    if judgments:
        return _("This format carries none of these annotations. Choose another format.")
    if export.without_filters().exists():
        return _("No annotation matches all filters. Remove one of them.")
    return _("The project has no annotations yet. Gold items, retests and earlier versions do not count.")


# ── As a file ───────────────────────────────────────────────────────────────────────────


TYPES: Mapping[str, tuple[str, str]] = {
    "csv": ("text/csv; charset=utf-8", "csv"),
    "json": ("application/json", "json"),
    "jsonl": ("application/jsonl", "jsonl"),
    "parquet": ("application/vnd.apache.parquet", "parquet"),
}
"""Container → media type, and the ending of a file's name."""

_READ_AT_ONCE = 1 << 16


def file_name(export: Export) -> str:
    return f"{export.project.slug}-{export.writer.name}.{TYPES[export.writer.container][1]}"


def pieces_of(export: Export) -> Iterator[bytes]:
    """The file, piece by piece, in whatever container."""
    if export.writer.container != "parquet":
        for text in export.text_stream():
            yield text.encode()
        return
    # Parquet has its table of contents at the end, so it has to be whole before its first byte goes.
    with tempfile.TemporaryFile() as file:
        write_parquet(export.row_stream(), export.writer.columns, file)
        file.seek(0)
        while piece := file.read(_READ_AT_ONCE):
            yield piece


def manifest_of(export: Export) -> dict[str, Any]:
    """Return contents, filters, and counts of dropped rows by reason: reads the export to its end."""
    for _row in export.row_stream():
        pass
    return export.manifest()


def dropped_lines(
    make: Callable[[Callable[[Record, Dropped], None]], Export],
) -> Iterator[str]:
    """Each thing that an export drops, as a line of JSON. make: the export, given whom to tell of them."""
    lines: list[str] = []
    for _row in make(lambda record, dropped: lines.append(dropped_line(record, dropped))).row_stream():
        yield from lines
        lines.clear()
    yield from lines


def export_of(
    *,
    project: Project,
    format_name: str,
    filters: ExportFilters,
    on_drop: Callable[[Record, Dropped], None] | None = None,
) -> Export:
    """An export in the format of a name of `WRITERS`. Refuses filters that name what is not there."""
    require_known(project=project, filters=filters)
    return Export(project=project, writer=WRITERS[format_name], filters=filters, on_drop=on_drop)


# A project's judgments as a folder that `datasets.load_dataset` reads, with a data card.

_SPLITS = {Split.TRAIN: "train", Split.HELD_OUT: "test"}
"""Our names of the two sides, and those of the hub."""
_CONFIGURATIONS = {"preference": "trl-preference", "judgments": "jsonl"}
"""Name of a configuration → its format."""
_ALL = ExportFilters()


def write_dataset_folder(*, project: Project, folder: Path, filters: ExportFilters = _ALL) -> list[Export]:
    """Write two configurations, each with the splits `train` and `test`, and what was left out.

    `preference` is TRL's pairs, `judgments` is everything, both as JSON Lines: `datasets` reads one sort of
    file from a folder. `README.md` is the card, with counts, filters and what was dropped; `dropped.jsonl`
    lists that, a line each.
    """
    exports = []
    with (folder / "dropped.jsonl").open("w", encoding="utf-8") as dropped:

        def note(record: Record, what: Dropped) -> None:
            dropped.write(dropped_line(record, what))

        for split, name in _SPLITS.items():
            exports += [
                _written(
                    project, writer, replace(filters, split=split), note, _lines(folder, configuration, name)
                )
                for configuration, writer in _CONFIGURATIONS.items()
            ]
    card = _card(project, exports)
    (folder / "README.md").write_text(card, encoding="utf-8")
    return exports


def _written(
    project: Project,
    format_name: str,
    filters: ExportFilters,
    note: Callable[[Record, Dropped], None],
    write: Callable[[Export], None],
) -> Export:
    export = Export(
        project=project,
        writer=WRITERS[format_name],
        filters=filters,
        on_drop=note,
    )
    write(export)
    return export


def _lines(folder: Path, configuration: str, name: str) -> Callable[[Export], None]:
    path = folder / configuration / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)

    def write(export: Export) -> None:
        with path.open("w", encoding="utf-8", newline="\n") as stream:
            for row in export.row_stream():
                stream.write(as_line(_of_one_type(row)))
        if not export.rows:
            # `datasets` refuses a file without rows; the card does not name it then.
            path.unlink()

    return write


def _of_one_type(row: dict[str, Any]) -> dict[str, Any]:
    """Which completions there are differs from row to row, and a column has one type: so a list."""
    if "ranks" not in row:
        return row
    return row | {"ranks": [{"completion": pk, "rank": rank} for pk, rank in row["ranks"].items()]}


def _card(project: Project, exports: Sequence[Export]) -> str:
    rows = "\n".join(
        f"| {_configuration(e)} | {_side(e)} | {e.judgments} | {e.rows} | {_dropped(e)} |" for e in exports
    )
    files = "\n".join(
        f"- config_name: {name}\n  data_files:\n"
        + "\n".join(
            f"  - split: {_side(e)}\n    path: {name}/{_side(e)}.jsonl"
            for e in exports
            if e.writer.name == writer and e.rows
        )
        for name, writer in _CONFIGURATIONS.items()
        if any(e.rows for e in exports if e.writer.name == writer)
    )
    filters = exports[0].manifest()["filters"]
    return f"""---
configs:
{files}
tags:
- preference
- human-feedback
- rondo
---

# {project.name}

{project.description or "Judgments of model outputs, made with Rondo."}

## What is in it

`preference` holds one row for each decided pair, in TRL's conversational format. `judgments` holds
every judgment whole: ranks with ties, verdicts without a winner, marks, missing information, corrections,
ratings. A prompt is on one side of the split for good: `test` is what no training of Rondo's has seen.

| configuration | split | judgments | rows | not carried |
|---|---|---|---|---|
{rows}

`dropped.jsonl` names every one of them with its reason.

## Filters

- rounds: {filters["rounds"]}
- judged by programs too: {"yes" if filters["programs that judge"] else "no"}
{_narrower(filters)}- {filters["judgments"]}

People appear under pseudonyms. Texts are as models and people wrote them.
"""


def _side(export: Export) -> str:
    return _SPLITS[Split(export.filters.split)]


def _narrower(filters: dict[str, Any]) -> str:
    """The filters that restrict further, a line each."""
    names = ("annotator", "since", "until", "tag", "category")
    return "".join(f"- {name}: {filters[name]}\n" for name in names if name in filters)


def _configuration(export: Export) -> str:
    return "judgments" if export.writer.name == "jsonl" else "preference"


def _dropped(export: Export) -> str:
    return "; ".join(f"{reason}: {count}" for reason, count in sorted(export.dropped.items())) or "nothing"
