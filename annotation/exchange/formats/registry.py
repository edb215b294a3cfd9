"""Every format by name, in and out, and the one that a file seems to be.

A format is a module of this folder with `READERS`, `WRITERS` or both. Name it in `_MODULES`; another package
calls `register`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from annotation.errors import Refusal
from annotation.exchange.formats import (
    argilla,
    chatbot_arena,
    columns,
    label_studio,
    openai,
    openassistant,
    openrlhf,
    otel_traces,
    prompts_jsonl,
    qa_feedback,
    rondo_csv,
    rondo_jsonl,
    spans,
    trace_messages,
    transcripts,
    trl,
    ultrafeedback,
    verl,
)
from annotation.exchange.formats.items import Reader, Row
from annotation.exchange.formats.writers import Writer

SAMPLE_ROWS = 20

READERS: dict[str, Reader] = {}
"""In the order in which they are guessed: more telling names come first, and any table last."""
WRITERS: dict[str, Writer] = {}
_MODULES = (
    *(rondo_jsonl, rondo_csv, qa_feedback, transcripts, ultrafeedback, chatbot_arena, openassistant),
    *(label_studio, argilla, trl, otel_traces, openai, trace_messages, openrlhf, verl, spans),
    *(prompts_jsonl, columns),
)


def register(*formats: Reader | Writer) -> None:
    """Add formats, each under its name. Readers are guessed in this order, a table last."""
    for file_format in formats:
        if isinstance(file_format, Writer):
            WRITERS[file_format.name] = file_format
        else:
            READERS[file_format.name] = file_format
            if "table" in READERS:
                READERS["table"] = READERS.pop("table")


for _module in _MODULES:
    register(*getattr(_module, "READERS", ()), *getattr(_module, "WRITERS", ()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The plan for reading a file."""

    reader: Reader
    mapping: Mapping[str, str]
    """Column of the format → column of the file, where the names differ."""


def plan_for(sample: Sequence[Row], *, name: str = "", mapping: Mapping[str, str] | None = None) -> Plan:
    """Return the plan for a file with such rows: the format named, or the one that they look like.

    mapping: what a person says of the columns; it goes before what is guessed. Refuses a format that is not
    known, and a column that no row has.
    """
    if name and name not in READERS:
        raise Refusal(f"The format {name!r} is not known. Known are: {', '.join(READERS)}.", field="format")
    if not sample:
        raise Refusal("The file has no rows.", field="file")
    overrides = dict(mapping or {})
    names = _names(sample)
    if strangers := sorted(set(overrides.values()) - names):
        raise Refusal(
            f"No row has the column {strangers[0]!r}. There are: {', '.join(sorted(names))}.", field="map"
        )
    rows = [columns.renamed(row, overrides) for row in sample]
    reader = READERS[name] if name else _guess(rows)
    if reader.name != "table":
        return Plan(reader=reader, mapping=overrides)
    guessed = columns.guess(sorted({column for row in rows for column in row}))
    whole = {**{ours: theirs for ours, theirs in guessed.items() if ours not in overrides}, **overrides}
    rows = [columns.renamed(row, whole) for row in sample]
    return Plan(reader=reader if name else _guess(rows), mapping=whole)


def _names(sample: Sequence[Row]) -> set[str]:
    names: set[str] = set()
    for row in sample:
        inner: list[Mapping[str, Any]] = [row[n] for n in ("data", "fields") if isinstance(row.get(n), dict)]
        for part in (row, *inner):
            names |= set(part)
    return names


def _guess(rows: Sequence[Row]) -> Reader:
    return next(reader for reader in READERS.values() if all(reader.matches(row) for row in rows))
