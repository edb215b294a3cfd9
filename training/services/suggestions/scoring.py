"""Suggestions of a reward model: segments that it thinks faulty, and the response that it scores highest."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import exp

from annotation.choices import CategoryScope, SuggestionKind, Verdict
from annotation.models import Category
from annotation.services.suggestions.storing import SuggestionInput
from training.engine import Scores
from training.models import Checkpoint
from training.services.suggestions.asking import Question


def categories_of_heads(checkpoint: Checkpoint) -> dict[str, list[str]]:
    """Return for each head on segments the keys of the categories that it learned."""
    settings = checkpoint.run.spec.get("settings", {}) if checkpoint.run else {}
    return {head["name"]: list(head["categories"]) for head in settings.get("segments", ())}


def suggestions_of(
    scores: Scores, question: Question, heads: Mapping[str, Sequence[str]]
) -> list[SuggestionInput]:
    """Return the spans and the preference that follow from a reward model's scores.

    A segment's reward is the log-odds that it is faultless, so the confidence of a span is the probability
    of a fault, 1 / (1 + exp(reward)). Neighbouring faulty segments stay apart, as the head learned them. The
    confidence of a preference is the Bradley-Terry probability of the best response against the second.
    """
    suggestions: list[SuggestionInput] = []
    if SuggestionKind.SPAN in question.kinds:
        suggestions += _spans(scores, question, heads)
    if SuggestionKind.PREFERENCE in question.kinds and scores.scores:
        suggestions.append(_preference(scores.scores, list(question.texts)))
    return suggestions


def _spans(
    scores: Scores, question: Question, heads: Mapping[str, Sequence[str]]
) -> Iterator[SuggestionInput]:
    known = question.of_scope(CategoryScope.SPAN)
    for head, of_completions in sorted(scores.segments.items()):
        category: Category | None = next((known[key] for key in heads.get(head, ()) if key in known), None)
        if category is None:
            continue
        for (completion, text), segments in zip(question.texts.items(), of_completions, strict=True):
            for segment in segments:
                start, end = _without_spaces(text, segment.start, segment.end)
                if start < end:
                    yield SuggestionInput(
                        kind=SuggestionKind.SPAN,
                        completion_id=completion,
                        category_id=category.pk,
                        start=start,
                        end=end,
                        quote=text[start:end],
                        confidence=_sigmoid(-segment.reward),
                    )


def _preference(scores: Sequence[float], completions: Sequence[int]) -> SuggestionInput:
    best_first = sorted(zip(scores, completions, strict=True), key=lambda pair: (-pair[0], pair[1]))
    tiers = [[pk for _score, pk in tier] for _score, tier in groupby(best_first, key=lambda pair: pair[0])]
    ranks = {pk: rank for rank, tier in enumerate(tiers, start=1) for pk in tier}
    return SuggestionInput(
        kind=SuggestionKind.PREFERENCE,
        verdict=Verdict.RANKED if len(tiers) > 1 else Verdict.EQUAL,
        ranks=ranks,
        confidence=_sigmoid(best_first[0][0] - best_first[1][0]),
    )


def _without_spaces(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the stretch without the white space around it."""
    stretch = text[start:end]
    return start + len(stretch) - len(stretch.lstrip()), end - len(stretch) + len(stretch.rstrip())


def _sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x)) if x >= 0 else exp(x) / (1 + exp(x))
