"""Suggestions planted wrong, so that it can be measured who accepts them unread.

Drawn with the server's key from the comparison and the suggestion's number: the same suggestion is planted or
not however often it is computed, and nobody can tell beforehand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from annotation.choices import CategoryScope, SuggestionKind, Verdict
from annotation.services.assignments.randomness import drawn_below, drawn_within
from annotation.services.suggestions.storing import SuggestionInput
from training.contract.segmentation import segment
from training.services.suggestions.asking import Question


def plant(
    suggestions: Sequence[SuggestionInput], *, question: Question, share: float, comparison_id: int
) -> list[SuggestionInput]:
    """Return the suggestions, a `share` of those that can be made wrong in a wrong form.

    A span moves to a sentence of its response in which nothing is suggested, or gets another category; a
    critique or missing information goes to another response; a ranking is reversed.
    """
    planted = []
    for number, suggestion in enumerate(suggestions):
        subject = f"{comparison_id}:{number}"
        wrong = _wrong_forms(suggestion, suggestions, question)
        if wrong and drawn_within(share, "planted", subject):
            form = wrong[drawn_below(len(wrong), "planted form", subject)]
            suggestion = replace(form, original=suggestion.as_json())
        planted.append(suggestion)
    return planted


def _wrong_forms(
    suggestion: SuggestionInput, all_of_them: Sequence[SuggestionInput], question: Question
) -> list[SuggestionInput]:
    if suggestion.kind == SuggestionKind.PREFERENCE:
        # Turned around, a partial ranking would put its rest nowhere.
        if suggestion.verdict != Verdict.RANKED or len(suggestion.ranks) < len(question.texts):
            return []
        worst = max(suggestion.ranks.values())
        return [replace(suggestion, ranks={pk: worst + 1 - rank for pk, rank in suggestion.ranks.items()})]
    if suggestion.kind != SuggestionKind.SPAN:
        others = [pk for pk in question.texts if pk != suggestion.completion_id]
        return [replace(suggestion, completion_id=pk) for pk in others]
    return [*_moved(suggestion, all_of_them, question.texts), *_recategorised(suggestion, question)]


def _moved(
    suggestion: SuggestionInput, all_of_them: Sequence[SuggestionInput], texts: Mapping[int, str]
) -> list[SuggestionInput]:
    """Return the suggestion on one sentence each of its response that no suggestion touches."""
    text = texts[suggestion.completion_id or 0]
    spans = [
        (other.start or 0, other.end or 0)
        for other in all_of_them
        if other.kind == SuggestionKind.SPAN and other.completion_id == suggestion.completion_id
    ]
    moved = []
    for start, end in segment(text, "sentence"):
        if any(start < last and first < end for first, last in spans) or not text[start:end].strip():
            continue
        first = end - len(text[start:end].lstrip())
        last = first + len(text[first:end].rstrip())
        moved.append(replace(suggestion, start=first, end=last, quote=text[first:last]))
    return moved


def _recategorised(suggestion: SuggestionInput, question: Question) -> list[SuggestionInput]:
    others = [
        category
        for category in question.of_scope(CategoryScope.SPAN).values()
        if category.pk != suggestion.category_id
    ]
    return [replace(suggestion, category_id=category.pk, severity=None) for category in others]
