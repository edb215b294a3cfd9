"""A project that helps its annotators, and comparisons with suggestions."""

import uuid
from collections.abc import Sequence
from typing import Any

from annotation.choices import SuggestionKind
from annotation.models import Comparison, HelpReveal, Judgment, Project, Suggestion, User
from annotation.record.judgment import JudgmentRecord
from annotation.services.suggestions import (
    DecisionInput,
    SuggestionInput,
    finish_help,
    set_help,
    store_suggestions,
)
from tests import factories
from tests.records import judgment_record

TEXTS = ("Two minutes. Never boil it.", "Ten hours.")


def switch_on(project: Project, carol: User, *, control_share: float = 0.0, **settings: Any) -> None:
    """Suggestions for everybody but a share."""
    set_help(project=project, is_active=True, by=carol, control_share=control_share, **settings)


def span(comparison: Comparison, quote: str, *, key: str = "untruthful", **fields: Any) -> SuggestionInput:
    """A span on the first completion that has the quote."""
    for completion in comparison.completions.order_by("pk"):
        start = completion.text.find(quote)
        if start >= 0:
            return SuggestionInput(
                kind=SuggestionKind.SPAN,
                completion_id=completion.pk,
                category_id=comparison.project.categories.get(key=key).pk,
                start=start,
                end=start + len(quote),
                quote=quote,
                **fields,
            )
    raise AssertionError(f"no completion says {quote!r}")


def prefers(comparison: Comparison, ranks: Sequence[int], **fields: Any) -> SuggestionInput:
    """A preference with these ranks, in the order of the candidates."""
    ids = comparison.candidates.order_by("index").values_list("completion_id", flat=True)
    return SuggestionInput(
        kind=SuggestionKind.PREFERENCE, verdict="ranked", ranks=dict(zip(ids, ranks, strict=True)), **fields
    )


def suggest(comparison: Comparison, *suggestions: SuggestionInput) -> list[Suggestion]:
    """Store the suggestions; the rows, in their order."""
    stored = store_suggestions(comparison=comparison, source="judge", suggestions=suggestions)
    return list(stored.suggestions.order_by("pk"))


def ranking(comparison: Comparison, ranks: Sequence[int], **fields: Any) -> JudgmentRecord:
    """An answer with these ranks, in the order of the candidates."""
    ids = comparison.candidates.order_by("index").values_list("completion_id", flat=True)
    return judgment_record(verdict="ranked", ranks=dict(zip(ids, ranks, strict=True)), **fields)


def finish(
    reveal: HelpReveal, annotator: User, answer: JudgmentRecord, decisions: dict[int, str], **more: Any
) -> Judgment:
    """The final pass, with the decisions by the suggestion's id."""
    return finish_help(
        reveal=reveal,
        annotator=annotator,
        answer=answer,
        decisions=[DecisionInput(suggestion_id=pk, decision=decision) for pk, decision in decisions.items()],
        **{"idempotency_key": uuid.uuid4(), **more},
    )


def compare(project: Project, texts: Sequence[str] = TEXTS) -> Comparison:
    """A comparison of these texts."""
    return factories.make_comparison(project, texts)
