"""Answers about one pair, for the tests of submission."""

import uuid
from typing import Any

from annotation.choices import AssignmentState, Verdict
from annotation.models import Assignment, Comparison, Completion, Judgment
from annotation.record.judgment import JudgmentRecord, MissingPart, SpanPart
from annotation.services.judgments.submission import submit_judgment
from tests.records import judgment_record

TEXT = "Grün 🍵 ist\r\n  gut.\tשלום e\u0301!"
"""Umlaut, emoji, CRLF, double space, tab, right-to-left, combining mark."""


def completions_of(comparison: Comparison) -> list[Completion]:
    return [candidate.completion for candidate in comparison.candidates.order_by("index")]


def prefer_first(comparison: Comparison, **more: Any) -> JudgmentRecord:
    first, second = completions_of(comparison)
    return judgment_record(**{"verdict": Verdict.RANKED, "ranks": {first.pk: 1, second.pk: 2}, **more})


def submit(
    assignment: Assignment, answer: JudgmentRecord, *, key: uuid.UUID | None = None, **more: Any
) -> Judgment:
    return submit_judgment(
        assignment=assignment,
        annotator=more.pop("annotator", assignment.annotator),
        answer=answer,
        idempotency_key=key or uuid.uuid4(),
        **more,
    )


def span(comparison: Comparison, quote: str, /, *, category: str = "untruthful", **changes: Any) -> SpanPart:
    """The first place where `quote` stands in the first completion."""
    completion = completions_of(comparison)[0]
    start = completion.text.index(quote)
    return SpanPart(
        **{
            "completion": str(completion.pk),
            "category": category,
            "start": start,
            "end": start + len(quote),
            "quote": quote,
            "text_hash": completion.text_hash,
            **changes,
        }
    )


def missing(comparison: Comparison, **fields: Any) -> MissingPart:
    return MissingPart(
        **{
            "completion": str(completions_of(comparison)[0].pk),
            "category": "missing",
            **fields,
        }
    )


def nothing_was_written(assignment: Assignment) -> bool:
    assignment.refresh_from_db()
    return not Judgment.objects.exists() and assignment.state == AssignmentState.LEASED
