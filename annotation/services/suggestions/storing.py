"""Storage of suggestions, computed by a model before annotators see the comparison."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _

from annotation.choices import CategoryScope, SuggestionKind
from annotation.errors import InvalidAnswer
from annotation.models import Category, Comparison, Completion, Suggestion, SuggestionSet
from annotation.record.judgment import SpanPart
from annotation.selectors.configuration import configuration_of
from annotation.services.judgments.checks import check_ranks, check_span, check_text


@dataclass(frozen=True, kw_only=True, slots=True)
class SuggestionInput:
    """One suggestion of a model; which fields it has depends on its kind."""

    kind: SuggestionKind
    completion_id: int | None = None
    category_id: int | None = None
    start: int | None = None
    end: int | None = None
    quote: str = ""
    severity: int | None = None
    text: str = ""
    verdict: str = ""
    ranks: Mapping[int, int] = field(default_factory=dict)
    confidence: float | None = None
    original: Mapping[str, Any] | None = None
    """The suggestion before it was made wrong on purpose; None for one that stands as the model made it."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields as a planted suggestion keeps them under `original`."""
        values = {name: value for name, value in asdict(self).items() if name != "original"}
        return {**values, "ranks": {str(pk): rank for pk, rank in self.ranks.items()}}


def store_suggestions(
    *, comparison: Comparison, source: str, suggestions: Sequence[SuggestionInput]
) -> SuggestionSet:
    """Write the suggestions for a comparison, all or none. A second call returns what is stored already.

    Refuses a span that does not stand on its quote (`StaleAnswer`), a place outside its completion, a
    category or completion that the comparison does not have, and a text that cannot be stored.
    """
    checked = [
        _checked(suggestion, number, comparison) for number, suggestion in enumerate(suggestions, start=1)
    ]
    with transaction.atomic():
        # The row decides between two workers: the later one writes nothing.
        stored, created = SuggestionSet.objects.get_or_create(
            comparison=comparison, defaults={"source": source}
        )
        if created:
            Suggestion.objects.bulk_create(_row(stored, suggestion) for suggestion in checked)
    return stored


def _row(stored: SuggestionSet, suggestion: SuggestionInput) -> Suggestion:
    return Suggestion(
        suggestion_set=stored,
        kind=suggestion.kind,
        completion_id=suggestion.completion_id,
        category_id=suggestion.category_id,
        start=suggestion.start,
        end=suggestion.end,
        quote=suggestion.quote,
        severity=suggestion.severity,
        text=suggestion.text,
        verdict=suggestion.verdict,
        ranks={str(pk): rank for pk, rank in suggestion.ranks.items()},
        confidence=suggestion.confidence,
        is_planted=suggestion.original is not None,
        original=dict(suggestion.original) if suggestion.original is not None else None,
    )


def _checked(suggestion: SuggestionInput, number: int, comparison: Comparison) -> SuggestionInput:
    completions = Completion.objects.filter(comparisons=comparison).in_bulk()
    check_text(suggestion.text, "text")
    if suggestion.kind == SuggestionKind.PREFERENCE:
        ranks = check_ranks(verdict=suggestion.verdict, ranks=suggestion.ranks, completion_ids=completions)
        return replace(suggestion, ranks=ranks)
    completion = completions.get(suggestion.completion_id or 0)
    if completion is None:
        raise InvalidAnswer(
            "unknown_response",
            _("Suggestion %(number)s refers to a response that is not in this comparison."),
            field="completion",
            number=number,
        )
    if suggestion.kind == SuggestionKind.SPAN:
        return _checked_span(suggestion, number, completion, comparison)
    if not suggestion.text.strip():
        raise InvalidAnswer(
            "suggestion_empty", _("Suggestion %(number)s has no text."), field="text", number=number
        )
    if suggestion.kind == SuggestionKind.MISSING:
        _category(suggestion, number, comparison, CategoryScope.MISSING)
    return suggestion


def _checked_span(
    suggestion: SuggestionInput, number: int, completion: Completion, comparison: Comparison
) -> SuggestionInput:
    category = _category(suggestion, number, comparison, CategoryScope.SPAN)
    steps = category.severity_steps
    # An accepted span needs a severity where its category asks for one: the middle step where none is known.
    severity = suggestion.severity or ((steps + 1) // 2 if steps else None)
    if suggestion.start is None or suggestion.end is None:
        raise InvalidAnswer(
            "suggestion_without_place", _("Suggestion %(number)s has no place."), field="start", number=number
        )
    span = SpanPart(
        completion=str(completion.pk),
        category=category.key,
        start=suggestion.start,
        end=suggestion.end,
        quote=suggestion.quote,
        text_hash=completion.text_hash,
        severity=severity,
    )
    check_span(span, number, {str(completion.pk): completion}, {category.key: category}, severity_asked=False)
    return replace(suggestion, severity=severity)


def _category(
    suggestion: SuggestionInput, number: int, comparison: Comparison, scope: CategoryScope
) -> Category:
    categories = configuration_of(comparison.project).categories
    category = next(
        (row for row in categories if row.pk == suggestion.category_id and row.scope == scope), None
    )
    if category is None:
        raise InvalidAnswer(
            "unknown_category",
            _("Suggestion %(number)s has a category that this project does not have."),
            field="category",
            number=number,
        )
    return category
