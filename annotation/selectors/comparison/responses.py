"""Responses of a comparison with the spans of everybody, or as one annotator saw them."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.safestring import SafeString

from annotation.agreement.records import decides_a_pair
from annotation.choices import FinishReason
from annotation.models import Completion, SpanFlag
from annotation.selectors.comparison.judgments import Remark, ShownJudgment
from annotation.selectors.comparison.traces import Traces
from annotation.text.rendering import render_answer
from annotation.text.span_rendering import Mark, with_marks
from annotation.text.step_markup import ShownStep


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberedSpan:
    """A span under its number in the text."""

    number: int
    span: SpanFlag
    annotator: str
    """Empty where the whole text is of one annotator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownResponse:
    """A response with spans in its text."""

    number: int
    is_truncated: bool
    markup: SafeString
    marks: Sequence[NumberedSpan]
    seen_as: Sequence[tuple[str, str]] = ()
    """The letters under which annotators saw it, each with their names."""
    letter: str = ""
    """The letter under which the annotator saw it; empty where it is shown with everybody's spans."""
    rank: int | None = None
    is_unordered: bool = False
    """True where a partial ranking leaves it below the ranked ones, without an order."""
    remarks: Sequence[Remark] = ()
    steps: Sequence[ShownStep] = ()
    """Of a trace, which is shown by them and not by its markup."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """The responses as one annotator saw them, in their order."""

    judgment: ShownJudgment
    responses: Sequence[ShownResponse]


def with_everybody(
    completion: Completion,
    number: int,
    judgments: Sequence[ShownJudgment],
    standing: Sequence[ShownJudgment],
    traces: Traces,
) -> ShownResponse:
    """Return a response with the spans of all standing judgments."""
    spans = [
        (span, shown.name)
        for shown in standing
        for span in shown.judgment.span_flags.all()
        if span.completion_id == completion.pk
    ]
    markup, marks = _marked(completion, spans)
    seen_as: dict[str, dict[str, None]] = {}
    for shown in judgments:
        seen_as.setdefault(shown.letters[completion.pk], {})[shown.name] = None
    return ShownResponse(
        number=number,
        is_truncated=completion.finish_reason == FinishReason.LENGTH,
        markup=markup,
        marks=marks,
        steps=traces.of(completion, standing),
        seen_as=[(letter, ", ".join(seen_as[letter])) for letter in sorted(seen_as)],
    )


def column_of(shown: ShownJudgment, completions: Sequence[Completion], traces: Traces) -> Column:
    """Return the responses in the order in which the annotator of a judgment saw them."""
    by_pk = {completion.pk: completion for completion in completions}
    seen = [_as_seen(shown, by_pk[pk], traces) for pk in shown.order if pk in by_pk]
    return Column(judgment=shown, responses=seen)


def _as_seen(shown: ShownJudgment, completion: Completion, traces: Traces) -> ShownResponse:
    spans = [(span, "") for span in shown.judgment.span_flags.all() if span.completion_id == completion.pk]
    markup, marks = _marked(completion, spans)
    return ShownResponse(
        number=shown.numbers[completion.pk],
        is_truncated=completion.finish_reason == FinishReason.LENGTH,
        markup=markup,
        marks=marks,
        letter=shown.letters[completion.pk],
        rank=shown.ranks.get(completion.pk) if decides_a_pair(shown.ranks, len(shown.order)) else None,
        is_unordered=completion.pk in shown.unordered,
        remarks=shown.remarks_about(completion.pk),
        steps=traces.of(completion, [shown], is_named=False),
    )


def _marked(
    completion: Completion, spans: Sequence[tuple[SpanFlag, str]]
) -> tuple[SafeString, list[NumberedSpan]]:
    """Return the text with the spans in it, and the spans under their numbers."""
    ordered = sorted(spans, key=lambda pair: (pair[0].start, pair[0].end))
    numbered = [
        NumberedSpan(number=number, span=span, annotator=annotator)
        for number, (span, annotator) in enumerate(ordered, start=1)
    ]
    drawn = [
        Mark(
            number=numbered_span.number,
            start=numbered_span.span.start,
            end=numbered_span.span.end,
            category=numbered_span.span.category.key,
        )
        for numbered_span in numbered
    ]
    # A trace is shown by its steps.
    markup = SafeString() if completion.step_count else with_marks(render_answer(completion.text), drawn)
    return markup, numbered
