"""Answers about one pair, for the tests of submission."""

import uuid
from typing import Any

from annotation.choices import AssignmentState, Verdict
from annotation.models import Assignment, Comparison, Completion, Judgment
from annotation.services.judgments.inputs import JudgmentAnswer, MissingInfoInput, SpanFlagInput
from annotation.services.judgments.submission import submit_judgment

TEXT = "Grün 🍵 ist\r\n  gut.\tשלום e\u0301!"
"""Umlaut, emoji, CRLF, double space, tab, right-to-left, combining mark."""


def completions_of(comparison: Comparison) -> list[Completion]:
    return [candidate.completion for candidate in comparison.candidates.order_by("index")]


def prefer_first(comparison: Comparison, **more: Any) -> JudgmentAnswer:
    first, second = completions_of(comparison)
    return JudgmentAnswer(**{"verdict": Verdict.RANKED, "ranks": {first.pk: 1, second.pk: 2}, **more})


def submit(
    assignment: Assignment, answer: JudgmentAnswer, *, key: uuid.UUID | None = None, **more: Any
) -> Judgment:
    return submit_judgment(
        assignment=assignment,
        annotator=more.pop("annotator", assignment.annotator),
        answer=answer,
        idempotency_key=key or uuid.uuid4(),
        **more,
    )


def span(
    comparison: Comparison, quote: str, /, *, category: str = "untruthful", **changes: Any
) -> SpanFlagInput:
    """The first place where `quote` stands in the first completion."""
    completion = completions_of(comparison)[0]
    start = completion.text.index(quote)
    return SpanFlagInput(
        **{
            "completion_id": completion.pk,
            "category_id": comparison.project.categories.get(key=category).pk,
            "start": start,
            "end": start + len(quote),
            "quote": quote,
            "text_hash": completion.text_hash,
            **changes,
        }
    )


def missing(comparison: Comparison, **fields: Any) -> MissingInfoInput:
    return MissingInfoInput(
        **{
            "completion_id": completions_of(comparison)[0].pk,
            "category_id": comparison.project.categories.get(key="missing").pk,
            **fields,
        }
    )


def nothing_was_written(assignment: Assignment) -> bool:
    assignment.refresh_from_db()
    return not Judgment.objects.exists() and assignment.state == AssignmentState.LEASED
