"""Corrections that come in: their texts, their edits, and the continuations of models among them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from django.utils import timezone

from annotation.exchange.accepted import Accepted
from annotation.exchange.formats.items import ImportedEdit, as_edits
from annotation.models import Continuation, Correction, CorrectionEdit, bulk
from annotation.text.edits import applied, edits

Spans = Mapping[tuple[int, int, str, int, int], int]
"""Judgment id, place of the completion, category, start and end → id of the span."""


@dataclass(frozen=True, slots=True)
class _Corrected:
    """One correction of one judgment."""

    judgment: int
    place: int
    completion: int
    original: str
    text: str
    edits: Sequence[ImportedEdit]


def write_corrections(
    numbered: Sequence[tuple[int, Accepted]], assignments: Mapping[int, int], spans: Spans
) -> None:
    """Write the corrections of judgments. `assignments` by judgment id."""
    corrected = list(_corrected(numbered))
    ids = bulk.insert_numbered(
        Correction,
        ["judgment_id", "completion_id", "text"],
        [(correction.judgment, correction.completion, correction.text) for correction in corrected],
    )
    continuations = iter(_write_continuations(corrected, assignments))
    bulk.insert_numbered(
        CorrectionEdit,
        [
            *("correction_id", "index", "start", "end", "quote", "replacement"),
            *("continuation_id", "span_flag_id"),
        ],
        [
            (
                *(pk, index, edit.start, edit.end, correction.original[edit.start : edit.end]),
                edit.replacement,
                next(continuations) if edit.is_model else None,
                spans[correction.judgment, correction.place, *edit.span] if edit.span else None,
            )
            for pk, correction in zip(ids, corrected, strict=True)
            for index, edit in enumerate(correction.edits)
        ],
    )


def _corrected(numbered: Sequence[tuple[int, Accepted]]) -> Iterator[_Corrected]:
    for pk, row in numbered:
        for place, text in row.judgment.corrections:
            original = row.item.completions[place].text
            imported_edits = [edit for edit in row.judgment.edits if edit.completion == place] or [
                ImportedEdit(completion=place, start=e.start, end=e.end, replacement=e.replacement)
                for e in edits(original, text)
            ]
            yield _Corrected(pk, place, row.completions[place], original, text, imported_edits)


def _write_continuations(corrected: Sequence[_Corrected], assignments: Mapping[int, int]) -> Sequence[int]:
    """Write a continuation for each edit by a model; its prefix is the text before it."""
    now = bulk.time_value(timezone.now())
    return bulk.insert_numbered(
        Continuation,
        [
            *("assignment_id", "completion_id", "prefix", "text"),
            *("seed", "sampling", "finish_reason", "created_at"),
        ],
        [
            (
                *(
                    assignments[correction.judgment],
                    correction.completion,
                    _before(correction, index),
                    edit.replacement,
                ),
                *(edit.seed, bulk.json_value(dict(edit.sampling)), "", now),
            )
            for correction in corrected
            for index, edit in enumerate(correction.edits)
            if edit.is_model
        ],
    )


def _before(correction: _Corrected, index: int) -> str:
    return applied(
        correction.original[: correction.edits[index].start],
        as_edits(correction.original, correction.edits[:index]),
    )
