"""Judgments as records: everything that stands for one, as `formats.rondo_jsonl` describes it."""

import json
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from django.db.models import Exists, OuterRef, QuerySet

from annotation.choices import DecisionKind, HelpArm
from annotation.models import (
    Candidate,
    Conversation,
    ConversationTurn,
    DecidedSuggestion,
    HelpReveal,
    Judgment,
    ReviewDecision,
    ReviewReturn,
    TraceStep,
)
from annotation.record.judgment import (
    AnswerPart,
    CorrectionPart,
    Edit,
    JudgmentRecord,
    SpanPart,
    named_place,
)
from annotation.selectors.records import records_of
from annotation.selectors.reviews import decided_record

# Conversations as parts of records, as `formats.conversation_turns` describes them.

Listed = Callable[[Iterable[int]], Mapping[int, list[dict[str, Any]]]]
"""Comparison ids → the completions of each."""


def turns_of_comparisons(
    comparisons: Collection[int], completions: Listed
) -> dict[int, list[dict[str, Any]]]:
    """Comparison id → the turns that it is, each with its conversation; of others there is no entry."""
    turns = list(
        ConversationTurn.objects.filter(comparison__in=comparisons)
        .select_related("conversation__annotator", "conversation__task")
        .order_by("conversation", "index")
    )
    if not turns:
        return {}
    unjudged = _unjudged({turn.conversation_id for turn in turns}, completions)
    listed: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for turn in turns:
        if turn.comparison_id is not None:
            listed[turn.comparison_id].append(
                {
                    **_conversation(turn.conversation),
                    **_turn(turn),
                    "unjudged": unjudged.get(turn.conversation_id, []),
                }
            )
    return listed


def _unjudged(conversations: Collection[Any], completions: Listed) -> dict[Any, list[dict[str, Any]]]:
    judged = Judgment.everything.filter(comparison=OuterRef("comparison"))
    turns = list(
        ConversationTurn.objects.filter(~Exists(judged), conversation__in=conversations)
        .select_related("prompt")
        .order_by("conversation", "index")
    )
    of_comparison = completions([turn.comparison_id for turn in turns if turn.comparison_id is not None])
    listed = defaultdict(list)
    for turn in turns:
        listed[turn.conversation_id].append(
            {
                **_turn(turn),
                "messages": turn.prompt.messages,
                "tags": turn.prompt.tags,
                "split": turn.prompt.split,
                "completions": of_comparison[turn.comparison_id] if turn.comparison_id is not None else [],
            }
        )
    return listed


def _turn(turn: ConversationTurn) -> dict[str, Any]:
    chosen = turn.continued_with_id
    return {
        "turn": turn.index,
        "continued_with": None if chosen is None else str(chosen),
        "continued_text": turn.continued_text,
    }


def _conversation(conversation: Conversation) -> dict[str, Any]:
    """One that came from elsewhere keeps the id and the task that it had there."""
    origin = conversation.imported_from or {}
    return {
        "id": str(origin.get("id", conversation.pk)),
        "annotator": str(conversation.annotator.pseudonym),
        "task": conversation.task.name if conversation.task else origin.get("task", ""),
        "system": conversation.system,
        "seed": conversation.seed,
        "rating": conversation.rating,
        "attack_success": conversation.attack_success,
        "comment": conversation.comment,
        "created_at": _conversation_time(conversation.created_at),
        "ended_at": conversation.ended_at and _conversation_time(conversation.ended_at),
    }


def _conversation_time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()


ROWS_AT_ONCE = 1_000


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
                "created_at",
            ),
            *("blind", "in_bulk"),
            *("imported_from", "annotator__pseudonym", "annotator__is_machine", "guideline__version"),
            *("rubric__rubric__name", "rubric__number"),
            "assignment__display_order",
            *("comparison__round_number", "comparison__prompt_id"),
            *("comparison__prompt__split", "comparison__prompt__messages", "comparison__prompt__context"),
            *("comparison__prompt__references", "comparison__prompt__tags"),
            *("comparison__metadata", "comparison__prompt__metadata"),
        )
    )
    rows = list(judgments)
    comparisons = {row["comparison_id"] for row in rows}
    completions = _completions(comparisons)
    turns = turns_of_comparisons(comparisons, _completions)
    judged = records_of(ids)
    help_of = _help({row["assignment_id"] for row in rows})
    decisions = _review_decisions(comparisons)
    returns = _returns({row["assignment_id"] for row in rows})
    for row in rows:
        pk = row["pk"]
        record = judged[pk]
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
            "verdict": record.verdict,
            "strength": record.strength,
            "demonstration": record.demonstration or None,
            "comment": record.comment,
            "guideline_version": row["guideline__version"],
            "active_seconds": record.active_seconds,
            "created_at": row["created_at"].astimezone(UTC).isoformat(),
            "blind": row["blind"],
            "imported_from": row["imported_from"],
            **_parts(record),
            "corrections": [_correction(part) for part in record.corrections],
            # Lines of projects without these parts keep their bytes.
            **({"in_bulk": True} if row["in_bulk"] else {}),
            **_listed("rubric_scores", record.rubric_scores),
            **_listed("step_labels", record.step_labels),
            **_answers(record.answers),
            **_rubric(row),
            **({"help": help_of[row["assignment_id"]]} if row["assignment_id"] in help_of else {}),
            **_review(decisions.get(row["comparison_id"]), returns.get(row["assignment_id"])),
            **_conversations(turns.get(row["comparison_id"])),
            **_metadata(row),
        }


def _rubric(row: Mapping[str, Any]) -> dict[str, Any]:
    name = row["rubric__rubric__name"]
    return {"rubric": {"name": name, "version": row["rubric__number"]}} if name else {}


def _listed(name: str, parts: Sequence[Any]) -> dict[str, Any]:
    return {name: [asdict(part) for part in parts]} if parts else {}


def _answers(answers: Sequence[AnswerPart]) -> dict[str, Any]:
    """Return the answers; only those about a step or a span have these fields."""
    listed = []
    for part in answers:
        values = asdict(part)
        step, span = values.pop("step"), values.pop("span")
        if step is not None:
            values["step"] = step
        if span is not None:
            values["span"] = named_place(span)
        listed.append(values)
    return {"answers": listed} if listed else {}


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
            *("completion__step_count", "completion__metadata"),
        )
    )
    listed = defaultdict(list)
    rows = list(candidates)
    steps = _steps({pk for _, pk, *_, step_count, _metadata in rows if step_count})
    for comparison, pk, text, source, sampling, seed, finish_reason, _, metadata in rows:
        listed[comparison].append(
            {
                "id": str(pk),
                "text": text,
                "source": source,
                "sampling": sampling,
                "seed": seed,
                "finish_reason": finish_reason,
                **({"steps": steps[pk]} if pk in steps else {}),
                **({"metadata": metadata} if metadata else {}),
            }
        )
    return listed


def _help(assignments: Collection[int]) -> dict[int, dict[str, Any]]:
    """Assignment → the first pass, its arm and the decisions on suggestions; nothing without help."""
    reveals = list(
        HelpReveal.objects.filter(assignment__in=assignments).values(
            *("pk", "assignment_id", "arm", "first_judgment_id", "final_judgment_id"),
            *("revealed_at", "finished_at", "first_judgment__created_at"),
        )
    )
    if not reveals:
        return {}
    judged = records_of([row["first_judgment_id"] for row in reveals])
    decisions = _decisions([row["pk"] for row in reveals])

    def first(row: Mapping[str, Any]) -> dict[str, Any]:
        pk = row["first_judgment_id"]
        record = judged[pk]
        return {
            "judgment": str(pk),
            "created_at": _time(row["first_judgment__created_at"]),
            "verdict": record.verdict,
            "strength": record.strength,
            "comment": record.comment,
            "active_seconds": record.active_seconds,
            **_parts(record),
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


def _review(decisions: list[dict[str, Any]] | None, returns: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Only a judgment that was returned or decided about has the field: other lines keep their bytes."""
    if not decisions and not returns:
        return {}
    return {"review": {"decisions": decisions or [], "returns": returns or []}}


def _review_decisions(comparisons: Collection[int]) -> dict[int, list[dict[str, Any]]]:
    """Comparison → every decision of its review and every undoing, the oldest first."""
    listed: dict[int, list[dict[str, Any]]] = defaultdict(list)
    entries = ReviewDecision.objects.filter(review__comparison__in=comparisons).order_by("pk")
    for entry in entries.select_related("review", "reviewer"):
        listed[entry.review.comparison_id].append(
            {
                "kind": entry.kind,
                "reviewer": str(entry.reviewer.pseudonym),
                "reason": entry.comment,
                "created_at": _time(entry.created_at),
                **(_decided(decided_record(entry)) if entry.kind == DecisionKind.DECIDED else {}),
            }
        )
    return listed


def _decided(record: JudgmentRecord) -> dict[str, Any]:
    return {
        "verdict": record.verdict,
        "strength": record.strength,
        **_parts(record),
        "corrections": [_correction(part) for part in record.corrections],
        **_listed("step_labels", record.step_labels),
        **_answers(record.answers),
        "demonstration": record.demonstration or None,
    }


def _returns(assignments: Collection[int]) -> dict[int, list[dict[str, Any]]]:
    """Assignment → each return of its annotation with the answer, the oldest first."""
    listed: dict[int, list[dict[str, Any]]] = defaultdict(list)
    rows = ReviewReturn.objects.filter(assignment__in=assignments).order_by("pk")
    for row in rows.select_related("returned_by"):
        listed[row.assignment_id].append(
            {
                "judgment": str(row.judgment_id),
                "reviewer": str(row.returned_by.pseudonym),
                "comment": row.comment,
                "returned_at": _time(row.returned_at),
                "state": row.state,
                "revision": _id(row.revision_id),
                "objection": row.objection,
                "closed_at": _time(row.closed_at),
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


def _span(part: SpanPart) -> dict[str, Any]:
    return {
        "completion": part.completion,
        "category": part.category,
        "start": part.start,
        "end": part.end,
        "quote": part.quote,
        "severity": part.severity,
        "note": part.note,
        # Of projects that have neither, rows stay as they were.
        **({"parent": part.parent} if part.parent else {}),
        **({"liked": True} if part.is_liked else {}),
        **({"relations": [asdict(link) for link in part.relations]} if part.relations else {}),
    }


def _correction(part: CorrectionPart) -> dict[str, Any]:
    return {
        "completion": part.completion,
        "text": part.text,
        "edits": [_edit(edit) for edit in part.edits],
        "preference": {"chosen": part.text, "rejected": part.completion},
    }


def _edit(edit: Edit) -> dict[str, Any]:
    """An edit; who wrote it and what it mends only where that is more than the annotator's text."""
    shown: dict[str, Any] = {
        "start": edit.start,
        "end": edit.end,
        "quote": edit.quote,
        "replacement": edit.replacement,
    }
    if edit.origin.continuation is not None:
        shown["model"] = {"seed": edit.origin.seed, "sampling": edit.origin.sampling}
    if edit.origin.span is not None:
        category, start, end = edit.origin.span
        shown["span"] = {"category": category, "start": start, "end": end}
    return shown


def _parts(record: JudgmentRecord) -> dict[str, Any]:
    """Return the parts of a judgment as a line has them."""
    return {
        "ranks": record.ranks,
        "spans": [_span(part) for part in record.spans],
        "missing": [asdict(part) for part in record.missing],
        "ratings": [asdict(part) for part in record.ratings],
        "critiques": [asdict(part) for part in record.critiques],
    }
