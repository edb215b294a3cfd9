"""Judgments as records: everything that stands for one, as `formats.rondo_jsonl` describes it."""

import json
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC
from typing import Any

from django.db.models import Model, QuerySet

from annotation.models import (
    Candidate,
    Correction,
    Critique,
    Judgment,
    MissingInfo,
    RankedCompletion,
    Rating,
    SpanFlag,
)

ROWS_AT_ONCE = 1_000

Row = tuple[Any, ...]


def as_line(record: Mapping[str, Any]) -> str:
    """A record as a line with its newline."""
    return json.dumps(record, ensure_ascii=False, sort_keys=True, allow_nan=False) + "\n"


def records(
    judgments: QuerySet[Judgment], *, rows_at_once: int = ROWS_AT_ONCE, at_most: int | None = None
) -> Iterator[dict[str, Any]]:
    """One object for each of `selectors.judgments_current`, in order of age; other formats are made of them.

    Which judgments they are is decided at once; what belongs to them is read some at a time, as
    plain values: model instances would take most of the time.
    """
    # Eight bytes for each: a million judgments are few megabytes.
    chosen = judgments.prefetch_related(None).order_by("pk").values_list("pk", flat=True)[:at_most]
    ids = array("q", chosen.iterator())
    for first in range(0, len(ids), rows_at_once):
        yield from _records(ids[first : first + rows_at_once].tolist())


def _records(ids: Sequence[int]) -> Iterator[dict[str, Any]]:
    """These judgments with everything that stands for them, ready for JSON."""
    found = (
        Judgment.objects.filter(pk__in=ids)
        .order_by("pk")
        .values(
            *("pk", "comparison_id", "verdict", "strength", "comment", "active_seconds", "created_at"),
            "blind",
            *("imported_from", "annotator__pseudonym", "annotator__is_machine", "guideline__version"),
            "assignment__display_order",
            *("demonstration__text", "comparison__round_number", "comparison__prompt_id"),
            *("comparison__prompt__split", "comparison__prompt__messages", "comparison__prompt__context"),
            *("comparison__prompt__references", "comparison__prompt__tags"),
        )
    )
    rows = list(found)
    completions = _completions({row["comparison_id"] for row in rows})
    parts = {name: read(ids) for name, read in _PARTS.items()}
    for row in rows:
        pk = row["pk"]
        yield {
            "judgment": str(pk),
            "comparison": str(row["comparison_id"]),
            "round": row["comparison__round_number"],
            "prompt": str(row["comparison__prompt_id"]),
            "split": row["comparison__prompt__split"],
            "messages": row["comparison__prompt__messages"],
            "context": row["comparison__prompt__context"],
            "references": row["comparison__prompt__references"],
            "tags": row["comparison__prompt__tags"],
            "completions": completions[row["comparison_id"]],
            "annotator": str(row["annotator__pseudonym"]),
            "machine": row["annotator__is_machine"],
            "display_order": [str(shown) for shown in row["assignment__display_order"]],
            "verdict": row["verdict"],
            "strength": row["strength"],
            "demonstration": row["demonstration__text"],
            "comment": row["comment"],
            "guideline_version": row["guideline__version"],
            "active_seconds": row["active_seconds"],
            "created_at": row["created_at"].astimezone(UTC).isoformat(),
            "blind": row["blind"],
            "imported_from": row["imported_from"],
            **{name: of_judgment.get(pk, []) for name, of_judgment in parts.items()},
            "ranks": dict(parts["ranks"].get(pk, ())),
        }


def _completions(comparisons: Iterable[int]) -> dict[int, list[dict[str, Any]]]:
    found = (
        Candidate.objects.filter(comparison__in=comparisons)
        .order_by("comparison_id", "index")
        .values_list(
            *("comparison_id", "completion_id", "completion__text", "completion__source__name"),
            *("completion__sampling", "completion__seed", "completion__finish_reason"),
        )
    )
    listed = defaultdict(list)
    for comparison, pk, text, source, sampling, seed, finish_reason in found:
        listed[comparison].append(
            {
                "id": str(pk),
                "text": text,
                "source": source,
                "sampling": sampling,
                "seed": seed,
                "finish_reason": finish_reason,
            }
        )
    return listed


Read = Callable[[Sequence[int]], dict[int, list[Any]]]


def _part(model: type[Model], fields: Sequence[str], shown: Callable[..., Any]) -> Read:
    """Reads one kind of rows: judgment id → what is shown of each, in the model's own order."""

    def read(ids: Sequence[int]) -> dict[int, list[Any]]:
        rows = model._default_manager.filter(judgment__in=ids).values_list("judgment_id", *fields)
        listed: dict[int, list[Any]] = defaultdict(list)
        for judgment, *values in rows:
            listed[judgment].append(shown(*values))
        return listed

    return read


def _corrections(ids: Sequence[int]) -> dict[int, list[Any]]:
    found = Correction.objects.filter(judgment__in=ids).select_related("completion").order_by("pk")
    listed: dict[int, list[Any]] = defaultdict(list)
    for correction in found.prefetch_related("edits"):
        listed[correction.judgment_id].append(
            {
                "completion": str(correction.completion_id),
                "text": correction.text,
                "edits": [
                    {
                        "start": edit.start,
                        "end": edit.end,
                        "quote": edit.quote,
                        "replacement": edit.replacement,
                    }
                    for edit in correction.edits.all()
                ],
                "preference": {"chosen": correction.text, "rejected": str(correction.completion_id)},
            }
        )
    return listed


def _span(
    completion: int, category: str, start: int, end: int, quote: str, severity: int | None, note: str
) -> dict[str, Any]:
    return {
        "completion": str(completion),
        "category": category,
        "start": start,
        "end": end,
        "quote": quote,
        "severity": severity,
        "note": note,
    }


def _missing(
    completion: int,
    category: str,
    text: str,
    insert_at: int | None,
    passage: int | None,
    sentence: int | None,
    quote: str,
    further: list[dict[str, Any]],
) -> dict[str, Any]:
    first = [] if passage is None else [{"passage": passage, "sentence": sentence, "quote": quote}, *further]
    return {
        "completion": str(completion),
        "category": category,
        "text": text,
        "insert_at": insert_at,
        "evidence": first,
    }


def _rating(completion: int, criterion: str, scale: str, value: int) -> dict[str, Any]:
    return {"completion": str(completion), "criterion": criterion, "scale": scale, "value": value}


_PARTS: dict[str, Read] = {
    "ranks": _part(RankedCompletion, ["completion_id", "rank"], lambda pk, rank: (str(pk), rank)),
    "spans": _part(
        SpanFlag,
        ["completion_id", "category__key", "start", "end", "quote", "severity", "note"],
        _span,
    ),
    "missing": _part(
        MissingInfo,
        [
            *("completion_id", "category__key", "text", "insert_at"),
            *("passage", "sentence", "quote", "further_evidence"),
        ],
        _missing,
    ),
    "corrections": _corrections,
    "ratings": _part(Rating, ["completion_id", "criterion__key", "criterion__scale", "value"], _rating),
    "critiques": _part(
        Critique,
        ["completion_id", "text"],
        lambda pk, text: {"completion": str(pk), "text": text},
    ),
}
