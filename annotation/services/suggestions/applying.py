"""Accepted suggestions as parts of an answer. Nothing here writes."""

from collections.abc import Iterable
from dataclasses import replace

from annotation.choices import SuggestionKind, Verdict
from annotation.models import Suggestion
from annotation.services.judgments.checks import dense_ranks
from annotation.services.judgments.inputs import (
    CritiqueInput,
    JudgmentAnswer,
    MissingInfoInput,
    SpanFlagInput,
)

SUGGESTED_STRENGTH = 2
"""Strength of an accepted preference where the annotator chose none."""


def contains(answer: JudgmentAnswer, suggestion: Suggestion) -> bool:
    """Return True where an answer says what a suggestion says."""
    kind = suggestion.kind
    if kind == SuggestionKind.SPAN:
        return any(
            (span.completion_id, span.category_id, span.start, span.end)
            == (suggestion.completion_id, suggestion.category_id, suggestion.start, suggestion.end)
            for span in answer.span_flags
        )
    if kind == SuggestionKind.MISSING:
        return any(
            (missing.completion_id, missing.category_id, missing.text.strip())
            == (suggestion.completion_id, suggestion.category_id, suggestion.text.strip())
            for missing in answer.missing_info
        )
    if kind == SuggestionKind.CRITIQUE:
        return any(
            critique.completion_id == suggestion.completion_id and suggestion.text.strip() in critique.text
            for critique in answer.critiques
        )
    return answer.verdict == suggestion.verdict and (
        answer.verdict != Verdict.RANKED or dense_ranks(answer.ranks) == ranks_of(suggestion)
    )


def with_accepted(
    answer: JudgmentAnswer, accepted: Iterable[Suggestion], *, asks_strength: bool
) -> JudgmentAnswer:
    """Return the answer with every accepted suggestion that it does not contain yet."""
    for suggestion in accepted:
        if not contains(answer, suggestion):
            answer = _with(answer, suggestion, asks_strength)
    return answer


def ranks_of(suggestion: Suggestion) -> dict[int, int]:
    """Completion id → rank of a suggested preference."""
    return {int(pk): rank for pk, rank in suggestion.ranks.items()}


def _with(answer: JudgmentAnswer, suggestion: Suggestion, asks_strength: bool) -> JudgmentAnswer:
    if suggestion.kind == SuggestionKind.PREFERENCE:
        size = suggestion.suggestion_set.comparison.size
        is_won_pair = suggestion.verdict == Verdict.RANKED and size == 2
        strength = SUGGESTED_STRENGTH if is_won_pair and asks_strength else None
        return replace(answer, verdict=suggestion.verdict, ranks=ranks_of(suggestion), strength=strength)
    completion = suggestion.completion
    if completion is None:
        return answer
    if suggestion.kind == SuggestionKind.CRITIQUE:
        before = [critique for critique in answer.critiques if critique.completion_id == completion.pk]
        text = "\n\n".join([*(critique.text for critique in before), suggestion.text])
        others = [critique for critique in answer.critiques if critique.completion_id != completion.pk]
        return replace(answer, critiques=(*others, CritiqueInput(completion_id=completion.pk, text=text)))
    category_id = suggestion.category_id or 0
    if suggestion.kind == SuggestionKind.MISSING:
        missing = MissingInfoInput(completion_id=completion.pk, category_id=category_id, text=suggestion.text)
        return replace(answer, missing_info=(*answer.missing_info, missing))
    span = SpanFlagInput(
        completion_id=completion.pk,
        category_id=category_id,
        start=suggestion.start or 0,
        end=suggestion.end or 0,
        quote=suggestion.quote,
        text_hash=completion.text_hash,
        severity=suggestion.severity,
    )
    return replace(answer, span_flags=(*answer.span_flags, span))
