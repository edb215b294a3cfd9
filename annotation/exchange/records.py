"""Judgments as records: everything that stands for one, as `formats.rondo_jsonl` describes it."""

import json
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.db.models import Model, QuerySet

from annotation.choices import HelpArm
from annotation.exchange.conversation_records import turns_of_comparisons
from annotation.models import (
    Candidate,
    Correction,
    CorrectionEdit,
    Critique,
    DecidedSuggestion,
    HelpReveal,
    Judgment,
    LabelledStep,
    MissingInfo,
    RankedCompletion,
    Rating,
    RubricScore,
    SpanFlag,
    TraceStep,
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
    judgments = (
        Judgment.objects.filter(pk__in=ids)
        .order_by("pk")
        .values(
            *(
                "pk",
                "assignment_id",
                "comparison_id",
                "verdict",
                "strength",
                "comment",
                "active_seconds",
                "created_at",
            ),
            "blind",
            *("imported_from", "annotator__pseudonym", "annotator__is_machine", "guideline__version"),
            *("rubric__rubric__name", "rubric__number"),
            "assignment__display_order",
            *("demonstration__text", "comparison__round_number", "comparison__prompt_id"),
            *("comparison__prompt__split", "comparison__prompt__messages", "comparison__prompt__context"),
            *("comparison__prompt__references", "comparison__prompt__tags"),
            *("comparison__metadata", "comparison__prompt__metadata"),
        )
    )
    rows = list(judgments)
    comparisons = {row["comparison_id"] for row in rows}
    completions = _completions(comparisons)
    turns = turns_of_comparisons(comparisons, _completions)
    parts = {name: read(ids) for name, read in _PARTS.items()}
    help_of = _help({row["assignment_id"] for row in rows})
    step_labels = _step_labels(ids)
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
            **{
                name: of_judgment.get(pk, [])
                for name, of_judgment in parts.items()
                # Lines of projects without these parts keep their bytes.
                if name != "rubric_scores" or pk in of_judgment
            },
            **_rubric(row),
            **({"help": help_of[row["assignment_id"]]} if row["assignment_id"] in help_of else {}),
            **({"step_labels": step_labels[pk]} if pk in step_labels else {}),
            "ranks": dict(parts["ranks"].get(pk, ())),
            **_conversations(turns.get(row["comparison_id"])),
            **_metadata(row),
        }


def _rubric(row: Mapping[str, Any]) -> dict[str, Any]:
    name = row["rubric__rubric__name"]
    return {"rubric": {"name": name, "version": row["rubric__number"]}} if name else {}


def _metadata(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the files held of the prompt and the comparison besides; without any, lines keep their bytes."""
    metadata = {**(row["comparison__prompt__metadata"] or {}), **(row["comparison__metadata"] or {})}
    return {"metadata": metadata} if metadata else {}


def _conversations(turns: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Only a turn of a conversation has the field: other lines keep their bytes."""
    return {"conversations": turns} if turns else {}


def _completions(comparisons: Iterable[int]) -> dict[int, list[dict[str, Any]]]:
    candidates = (
        Candidate.objects.filter(comparison__in=comparisons)
        .order_by("comparison_id", "index")
        .values_list(
            *("comparison_id", "completion_id", "completion__text", "completion__source__name"),
            *("completion__sampling", "completion__seed", "completion__finish_reason"),
            "completion__step_count",
        )
    )
    listed = defaultdict(list)
    rows = list(candidates)
    steps = _steps({pk for _, pk, *_, step_count in rows if step_count})
    for comparison, pk, text, source, sampling, seed, finish_reason, _ in rows:
        listed[comparison].append(
            {
                "id": str(pk),
                "text": text,
                "source": source,
                "sampling": sampling,
                "seed": seed,
                "finish_reason": finish_reason,
                **({"steps": steps[pk]} if pk in steps else {}),
            }
        )
    return listed


def _help(assignments: Collection[int]) -> dict[int, dict[str, Any]]:
    """Assignment → the first pass, its arm and the decisions on suggestions; nothing without help."""
    reveals = list(
        HelpReveal.objects.filter(assignment__in=assignments).values(
            *("pk", "assignment_id", "arm", "first_judgment_id", "final_judgment_id"),
            *("revealed_at", "finished_at", "first_judgment__created_at"),
            *("first_judgment__verdict", "first_judgment__strength"),
            *("first_judgment__comment", "first_judgment__active_seconds"),
        )
    )
    if not reveals:
        return {}
    ids = [row["first_judgment_id"] for row in reveals]
    parts = {name: _PARTS[name](ids) for name in ("ranks", "spans", "missing", "ratings", "critiques")}
    decisions = _decisions([row["pk"] for row in reveals])

    def first(row: Mapping[str, Any]) -> dict[str, Any]:
        pk = row["first_judgment_id"]
        return {
            "judgment": str(pk),
            "created_at": _time(row["first_judgment__created_at"]),
            **{
                name: row[f"first_judgment__{name}"]
                for name in ("verdict", "strength", "comment", "active_seconds")
            },
            **{name: of_judgment.get(pk, []) for name, of_judgment in parts.items()},
            "ranks": dict(parts["ranks"].get(pk, ())),
        }

    return {
        row["assignment_id"]: {
            "arm": row["arm"],
            "revealed_at": _time(row["revealed_at"]) if row["arm"] == HelpArm.HELPED else None,
            "finished_at": _time(row["finished_at"]),
            "final": _id(row["final_judgment_id"]),
            "first": first(row),
            "decisions": decisions.get(row["pk"], []),
        }
        for row in reveals
    }


def _decisions(reveals: Sequence[int]) -> dict[int, list[dict[str, Any]]]:
    """Reveal → each decision with the suggestion that it is about."""
    listed: dict[int, list[dict[str, Any]]] = defaultdict(list)
    rows = DecidedSuggestion.objects.filter(reveal__in=reveals).order_by("suggestion_id")
    for row in rows.select_related("suggestion__category", "suggestion__suggestion_set"):
        suggestion = row.suggestion
        listed[row.reveal_id].append(
            {
                "suggestion": str(suggestion.pk),
                "source": suggestion.suggestion_set.source,
                "kind": suggestion.kind,
                "completion": _id(suggestion.completion_id),
                "category": suggestion.category.key if suggestion.category else None,
                **{name: getattr(suggestion, name) for name in ("start", "end", "quote", "severity", "text")},
                "verdict": suggestion.verdict or None,
                "ranks": suggestion.ranks,
                "confidence": suggestion.confidence,
                "planted": suggestion.is_planted,
                "decision": row.decision,
                "seconds": row.seconds,
                "decided_at": _time(row.decided_at),
            }
        )
    return listed


def _id(pk: int | None) -> str | None:
    return None if pk is None else str(pk)


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat()


def _steps(completions: Iterable[int]) -> dict[int, list[dict[str, Any]]]:
    names = ("kind", "role", "tool", "call", "is_error", "start", "body", "end", "arguments")
    listed: dict[int, list[dict[str, Any]]] = defaultdict(list)
    steps = TraceStep.objects.filter(completion__in=completions).order_by("completion_id", "index")
    for completion, *values in steps.values_list("completion_id", *names) if completions else ():
        listed[completion].append(dict(zip(names, values, strict=True)))
    return listed


def _step_labels(judgments: Sequence[int]) -> dict[int, list[dict[str, Any]]]:
    listed: dict[int, list[dict[str, Any]]] = defaultdict(list)
    rows = LabelledStep.objects.filter(judgment__in=judgments).order_by("judgment_id", "step_id")
    for judgment, completion, step, label in rows.values_list(
        "judgment_id", "step__completion_id", "step__index", "label"
    ):
        listed[judgment].append({"completion": str(completion), "step": step, "label": label})
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
    corrections = Correction.objects.filter(judgment__in=ids).select_related("completion").order_by("pk")
    listed: dict[int, list[Any]] = defaultdict(list)
    for correction in corrections.prefetch_related("edits__continuation", "edits__span_flag__category"):
        listed[correction.judgment_id].append(
            {
                "completion": str(correction.completion_id),
                "text": correction.text,
                "edits": [_edit(edit) for edit in correction.edits.all()],
                "preference": {"chosen": correction.text, "rejected": str(correction.completion_id)},
            }
        )
    return listed


def _edit(edit: CorrectionEdit) -> dict[str, Any]:
    """An edit; who wrote it and what it mends only where that is more than the annotator's text."""
    shown: dict[str, Any] = {
        "start": edit.start,
        "end": edit.end,
        "quote": edit.quote,
        "replacement": edit.replacement,
    }
    if model := edit.continuation:
        shown["model"] = {"seed": model.seed, "sampling": model.sampling}
    if span := edit.span_flag:
        shown["span"] = {"category": span.category.key, "start": span.start, "end": span.end}
    return shown


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


def _score(
    completion: int, criterion: str, scale: str, weight: float, value: float, reason: str
) -> dict[str, Any]:
    return {
        "completion": str(completion),
        "criterion": criterion,
        "scale": scale,
        "weight": weight,
        "value": value,
        "reason": reason,
    }


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
    "rubric_scores": _part(
        RubricScore,
        [
            *("completion_id", "criterion__key", "criterion__scale", "criterion__weight"),
            *("value", "reason"),
        ],
        _score,
    ),
    "critiques": _part(
        Critique,
        ["completion_id", "text"],
        lambda pk, text: {"completion": str(pk), "text": text},
    ),
}
