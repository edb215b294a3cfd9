"""Accepted suggestions as parts of an answer. Nothing here writes."""

from collections.abc import Iterable
from dataclasses import replace

from annotation.choices import SuggestionKind, Verdict
from annotation.models import Suggestion
from annotation.record.judgment import CritiquePart, JudgmentRecord, MissingPart, SpanPart
from annotation.services.judgments.checks import dense_ranks

SUGGESTED_STRENGTH = 2
"""Strength of an accepted preference where the annotator chose none."""


def contains(answer: JudgmentRecord, suggestion: Suggestion) -> bool:
    """Return True where an answer says what a suggestion says."""
    kind = suggestion.kind
    if kind == SuggestionKind.SPAN:
        return any(
            (span.completion, span.category, span.start, span.end)
            == (*_named(suggestion), suggestion.start, suggestion.end)
            for span in answer.spans
        )
    if kind == SuggestionKind.MISSING:
        return any(
            (missing.completion, missing.category, missing.text.strip())
            == (*_named(suggestion), suggestion.text.strip())
            for missing in answer.missing
        )
    if kind == SuggestionKind.CRITIQUE:
        return any(
            critique.completion == _named(suggestion)[0] and suggestion.text.strip() in critique.text
            for critique in answer.critiques
        )
    return answer.verdict == suggestion.verdict and (
        answer.verdict != Verdict.RANKED or dense_ranks(answer.ranks) == suggestion.ranks
    )


def with_accepted(
    answer: JudgmentRecord, accepted: Iterable[Suggestion], *, asks_strength: bool
) -> JudgmentRecord:
    """Return the answer with every accepted suggestion that it does not contain yet."""
    for suggestion in accepted:
        if not contains(answer, suggestion):
            answer = _with(answer, suggestion, asks_strength)
    return answer


def ranks_of(suggestion: Suggestion) -> dict[int, int]:
    """Completion id → rank of a suggested preference."""
    return {int(pk): rank for pk, rank in suggestion.ranks.items()}


def _named(suggestion: Suggestion) -> tuple[str, str]:
    """Return the completion and the category of a suggestion, as a record names them."""
    return str(suggestion.completion_id), suggestion.category.key if suggestion.category else ""


def _with(answer: JudgmentRecord, suggestion: Suggestion, asks_strength: bool) -> JudgmentRecord:
    if suggestion.kind == SuggestionKind.PREFERENCE:
        size = suggestion.suggestion_set.comparison.size
        is_won_pair = suggestion.verdict == Verdict.RANKED and size == 2
        strength = SUGGESTED_STRENGTH if is_won_pair and asks_strength else None
        return replace(
            answer,
            verdict=suggestion.verdict,
            ranks=dict(suggestion.ranks),
            strength=strength,
        )
    completion = suggestion.completion
    if completion is None:
        return answer
    name, category = _named(suggestion)
    if suggestion.kind == SuggestionKind.CRITIQUE:
        before = [critique for critique in answer.critiques if critique.completion == name]
        text = "\n\n".join([*(critique.text for critique in before), suggestion.text])
        others = [critique for critique in answer.critiques if critique.completion != name]
        return replace(answer, critiques=(*others, CritiquePart(completion=name, text=text)))
    if suggestion.kind == SuggestionKind.MISSING:
        missing = MissingPart(completion=name, category=category, text=suggestion.text)
        return replace(answer, missing=(*answer.missing, missing))
    span = SpanPart(
        completion=name,
        category=category,
        start=suggestion.start or 0,
        end=suggestion.end or 0,
        quote=suggestion.quote,
        text_hash=completion.text_hash,
        severity=suggestion.severity,
    )
    return replace(answer, spans=(*answer.spans, span))
