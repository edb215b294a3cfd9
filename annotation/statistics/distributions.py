"""Distributions: how often each choice, point or category was given, by everybody and by each annotator."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from statistics import fmean, median
from typing import Any

from annotation.agreement.records import Answered, Judged, JudgedSpan
from annotation.choices import CategoryScope
from annotation.models import Category
from annotation.record.questions import CHOSEN_KINDS, Question
from annotation.selectors.configuration import in_groups
from annotation.statistics.report import MEASURED, Distribution, Option, Spread


def answer_distributions(
    questions: Sequence[Question], answers: Iterable[Answered], judged: Iterable[Judged]
) -> tuple[Distribution, ...]:
    """Return the answers to each question in its newest version. One without an answer has none."""
    annotators = {judgment.pk: judgment.annotator for judgment in judged}
    given: dict[str, list[tuple[int, Any]]] = {}
    for answered in answers:
        if answered.judgment in annotators:
            given.setdefault(answered.question, []).append((annotators[answered.judgment], answered.value))
    return tuple(
        _of_question(question, given[question.key]) for question in questions if question.key in given
    )


def span_distribution(
    categories: Iterable[Category],
    spans: Mapping[tuple[int, int], Sequence[JudgedSpan]],
    judged: Iterable[Judged],
) -> Distribution | None:
    """Return the spans by category, sub-categories behind theirs; None without a span.

    A category above others counts their spans, too.
    """
    annotators = {judgment.pk: judgment.annotator for judgment in judged}
    rows = in_groups(categories)
    parents = {row.pk: row.parent_id for row in rows}
    given: list[tuple[int, tuple[int, ...]]] = []
    for (judgment, _completion), marks in spans.items():
        if judgment in annotators:
            for mark in marks:
                parent = parents.get(mark.category)
                named = (mark.category,) if parent is None else (mark.category, parent)
                given.append((annotators[judgment], named))
    if not given:
        return None
    used = {pk for _annotator, named in given for pk in named}
    shown = [
        row for row in rows if row.scope == CategoryScope.SPAN and (row.pk in used or not row.is_archived)
    ]
    options = tuple(
        Option(
            key=row.key,
            label=row.signed_label if row.parent is None else row.label,
            is_part=row.parent is not None,
        )
        for row in shown
    )
    places = [row.pk for row in shown]
    return _distribution("spans", "", "spans", options, places, given, lambda named: named)


def _of_question(question: Question, given: Sequence[tuple[int, Any]]) -> Distribution:
    options = tuple(
        Option(key=choice.key, label=choice.label or choice.key)
        for choice in (question.choices if question.kind in CHOSEN_KINDS else ())
    )
    return _distribution(
        question.key,
        question.text,
        question.kind,
        options,
        question.choice_keys,
        given,
        lambda value: value if isinstance(value, tuple | list) else (str(value),),
        unit=question.unit,
    )


def _distribution(
    key: str,
    text: str,
    kind: str,
    options: Sequence[Option],
    places: Sequence[Any],
    given: Sequence[tuple[int, Any]],
    chosen: Any,
    *,
    unit: str = "",
) -> Distribution:
    by_person: dict[int, list[Any]] = {}
    for annotator, value in given:
        by_person.setdefault(annotator, []).append(value)

    def spread(values: Sequence[Any]) -> Spread:
        counts = Counter(place for value in values for place in chosen(value))
        numbers = [_number(kind, value) for value in values] if kind in MEASURED else []
        return Spread(
            answers=len(values),
            counts=tuple(counts[place] for place in places),
            mean=fmean(numbers) if numbers else None,
            median=median(numbers) if numbers else None,
            least=min(numbers, default=None),
            most=max(numbers, default=None),
        )

    return Distribution(
        key=key,
        text=text,
        kind=kind,
        unit=unit,
        options=tuple(options),
        everybody=spread([value for _annotator, value in given]),
        people=tuple((annotator, spread(values)) for annotator, values in by_person.items()),
    )


def _number(kind: str, value: Any) -> float:
    return float(date.fromisoformat(value).toordinal()) if kind == "date" else float(value)
