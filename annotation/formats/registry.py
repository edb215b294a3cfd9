"""Every format that comes in, by name, and which one a file seems to be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from annotation.errors import Refusal
from annotation.formats import (
    argilla,
    columns,
    label_studio,
    openassistant,
    prompts_jsonl,
    published,
    rondo_csv,
    rondo_reader,
    trl,
)
from annotation.formats.items import ImportedCompletion, ImportedItem, Reader, Row

SAMPLE_ROWS = 20


def _prompt(row: Row) -> list[ImportedItem]:
    parsed = prompts_jsonl.parse_object(dict(row))
    return [
        ImportedItem(
            messages=parsed.messages,
            context=parsed.context,
            references=parsed.references,
            tags=parsed.tags,
            completions=tuple(
                ImportedCompletion(text=one.text, source=one.source or "") for one in parsed.completions
            ),
        )
    ]


_PROMPTS = Reader(
    name="prompts",
    sentence="Prompts with context, references, tags, answers to be compared, as for import_prompts.",
    read=_prompt,
    matches=lambda row: "prompt" in row and set(row) <= set(prompts_jsonl.FIELDS),
)

# In the order in which they are guessed: what has more telling names comes first.
READERS: Mapping[str, Reader] = {
    reader.name: reader
    for reader in (
        *rondo_reader.READERS,
        *rondo_csv.READERS,
        *published.READERS,
        *openassistant.READERS,
        *label_studio.READERS,
        *argilla.READERS,
        *trl.READERS,
        _PROMPTS,
        *columns.READERS,
    )
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How a file is to be read."""

    reader: Reader
    mapping: Mapping[str, str]
    """Column of the format → column of the file, where the names differ."""


def plan_for(sample: Sequence[Row], *, name: str = "", mapping: Mapping[str, str] | None = None) -> Plan:
    """How to read a file with such rows: the format named, or the one that they look like.

    mapping: what a person says of the columns; it goes before what is guessed. Refuses a format that is not
    known, and a column that no row has.
    """
    if name and name not in READERS:
        raise Refusal(f"The format {name!r} is not known. Known are: {', '.join(READERS)}.", field="format")
    if not sample:
        raise Refusal("The file has no rows.", field="file")
    told = dict(mapping or {})
    names = _names(sample)
    if strangers := sorted(set(told.values()) - names):
        raise Refusal(
            f"No row has the column {strangers[0]!r}. There are: {', '.join(sorted(names))}.", field="map"
        )
    rows = [columns.renamed(row, told) for row in sample]
    reader = READERS[name] if name else _guess(rows)
    if reader.name != "table":
        return Plan(reader=reader, mapping=told)
    guessed = columns.guess(sorted({column for row in rows for column in row}))
    whole = {**{ours: theirs for ours, theirs in guessed.items() if ours not in told}, **told}
    rows = [columns.renamed(row, whole) for row in sample]
    return Plan(reader=reader if name else _guess(rows), mapping=whole)


def _names(sample: Sequence[Row]) -> set[str]:
    found: set[str] = set()
    for row in sample:
        inner: list[Mapping[str, Any]] = [row[n] for n in ("data", "fields") if isinstance(row.get(n), dict)]
        for one in (row, *inner):
            found |= set(one)
    return found


def _guess(rows: Sequence[Row]) -> Reader:
    return next(reader for reader in READERS.values() if all(reader.matches(row) for row in rows))
