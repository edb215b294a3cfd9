"""Judgments out of the database, as records: in a few queries however many there are."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from django.db.models import Model

from annotation.choices import Polarity
from annotation.models import (
    Correction,
    CorrectionEdit,
    Critique,
    Judgment,
    LabelledStep,
    MissingInfo,
    QuestionAnswer,
    RankedCompletion,
    Rating,
    RubricScore,
    SpanFlag,
)
from annotation.record.judgment import (
    BY_HAND,
    COLUMNS,
    AnswerPart,
    CorrectionPart,
    CritiquePart,
    Edit,
    EvidencePointer,
    JudgmentRecord,
    MissingPart,
    Origin,
    RatingPart,
    RubricScorePart,
    SpanLink,
    SpanPart,
    StepLabelPart,
)

T = TypeVar("T")


def records_of(judgments: Sequence[int]) -> dict[int, JudgmentRecord]:
    """Return what these judgments say, by their ids.

    Parts stand in the order in which their models have them. Completions are named by their ids.
    """
    ranks = _parts(RankedCompletion, judgments, ("completion_id", "rank"), lambda pk, rank: (str(pk), rank))
    spans = _parts(
        SpanFlag,
        judgments,
        [
            *("completion_id", "category__key", "start", "end", "quote", "severity", "note"),
            *("completion__text_hash", "category__parent__key", "category__polarity", "relations"),
        ],
        _span,
    )
    missing = _parts(
        MissingInfo,
        judgments,
        [
            *("completion_id", "category__key", "text", "insert_at"),
            *("passage", "sentence", "quote", "further_evidence"),
        ],
        _missing,
    )
    ratings = _parts(
        Rating,
        judgments,
        ("completion_id", "criterion__key", "criterion__scale", "value"),
        lambda pk, criterion, scale, value: RatingPart(
            completion=str(pk), criterion=criterion, scale=scale, value=value
        ),
    )
    scores = _parts(
        RubricScore,
        judgments,
        ("completion_id", "criterion__key", "criterion__scale", "criterion__weight", "value", "reason"),
        lambda pk, criterion, scale, weight, value, reason: RubricScorePart(
            completion=str(pk), criterion=criterion, scale=scale, weight=weight, value=value, reason=reason
        ),
    )
    critiques = _parts(
        Critique,
        judgments,
        ("completion_id", "text"),
        lambda pk, text: CritiquePart(completion=str(pk), text=text),
    )
    step_labels = _parts(
        LabelledStep,
        judgments,
        ("step__completion_id", "step__index", "label"),
        lambda pk, step, label: StepLabelPart(completion=str(pk), step=step, label=label),
        order=("judgment_id", "step_id"),
    )
    answers = _parts(
        QuestionAnswer,
        judgments,
        [
            *("completion_id", "version__question__key", "version__number", "value", "step__index"),
            *("span__category__key", "span__start", "span__end"),
        ],
        _answer,
        order=("judgment_id", "id"),
    )
    corrections = _corrections(judgments)
    rows: Iterable[Any] = Judgment.everything.filter(pk__in=judgments).values_list(
        "pk", "demonstration__text", *COLUMNS
    )
    return {
        pk: JudgmentRecord(
            ranks=dict(ranks.get(pk, ())),
            spans=_related(spans.get(pk, ())),
            missing=tuple(missing.get(pk, ())),
            corrections=tuple(corrections.get(pk, ())),
            ratings=tuple(ratings.get(pk, ())),
            rubric_scores=tuple(scores.get(pk, ())),
            critiques=tuple(critiques.get(pk, ())),
            step_labels=tuple(step_labels.get(pk, ())),
            answers=tuple(answers.get(pk, ())),
            demonstration=demonstration or "",
            **dict(zip(COLUMNS, columns, strict=True)),
        )
        for pk, demonstration, *columns in rows
    }


def _parts(
    model: type[Model],
    judgments: Sequence[int],
    fields: Sequence[str],
    build: Callable[..., T],
    *,
    order: Sequence[str] = (),
) -> Mapping[int, list[T]]:
    """Read one kind of parts: judgment → the parts, in the model's own order, or in `order`."""
    rows = model._default_manager.filter(judgment__in=judgments)
    listed: dict[int, list[T]] = defaultdict(list)
    for judgment, *values in (rows.order_by(*order) if order else rows).values_list("judgment_id", *fields):
        listed[judgment].append(build(*values))
    return listed


def _answer(
    completion: int | None,
    question: str,
    version: int,
    value: Any,
    step: int | None,
    category: str | None,
    start: int,
    end: int,
) -> AnswerPart:
    return AnswerPart(
        completion=None if completion is None else str(completion),
        question=question,
        version=version,
        value=tuple(value) if isinstance(value, list) else value,
        step=step,
        span=None if category is None else (category, start, end),
    )


def _span(
    completion: int,
    category: str,
    start: int,
    end: int,
    quote: str,
    severity: int | None,
    note: str,
    text_hash: str,
    parent: str | None,
    polarity: str,
    relations: Sequence[Mapping[str, Any]] | None,
) -> tuple[SpanPart, Sequence[Mapping[str, Any]]]:
    part = SpanPart(
        completion=str(completion),
        category=category,
        start=start,
        end=end,
        quote=quote,
        severity=severity,
        note=note,
        text_hash=text_hash,
        parent=parent or "",
        is_liked=polarity == Polarity.MERIT,
    )
    return part, relations or ()


def _related(spans: Sequence[tuple[SpanPart, Sequence[Mapping[str, Any]]]]) -> tuple[SpanPart, ...]:
    """Return the spans of a judgment with what they are to each other, by their places among them."""
    if not any(relations for _part, relations in spans):
        return tuple(part for part, _relations in spans)
    places = {(part.completion, part.category, part.start, part.end): n for n, (part, _) in enumerate(spans)}
    return tuple(
        replace(
            part,
            relations=tuple(
                SpanLink(
                    kind=link["kind"],
                    to=places[str(link["completion"]), link["category"], link["start"], link["end"]],
                )
                for link in relations
            ),
        )
        for part, relations in spans
    )


def _missing(
    completion: int,
    category: str,
    text: str,
    insert_at: int | None,
    passage: int | None,
    sentence: int | None,
    quote: str,
    further: list[dict[str, Any]],
) -> MissingPart:
    first = [] if passage is None else [EvidencePointer(passage=passage, sentence=sentence, quote=quote)]
    return MissingPart(
        completion=str(completion),
        category=category,
        text=text,
        insert_at=insert_at,
        evidence=(*first, *(EvidencePointer(**pointer) for pointer in further)),
    )


def _corrections(judgments: Sequence[int]) -> Mapping[int, list[CorrectionPart]]:
    rows = list(
        Correction.objects.filter(judgment__in=judgments)
        .order_by("pk")
        .values_list("pk", "judgment_id", "completion_id", "text")
    )
    edits: dict[int, list[Edit]] = defaultdict(list)
    fields = ("start", "end", "quote", "replacement", "continuation_id")
    of_models = ("continuation__seed", "continuation__sampling")
    of_spans = ("span_flag__category__key", "span_flag__start", "span_flag__end")
    for pk, start, end, quote, replacement, continuation, seed, sampling, *span in (
        CorrectionEdit.objects.filter(correction__judgment__in=judgments).values_list(
            "correction_id", *fields, *of_models, *of_spans
        )
        if rows
        else ()
    ):
        category, begins, ends = span
        origin = Origin(
            continuation=continuation,
            seed=seed,
            sampling=sampling or {},
            span=None if category is None else (category, begins, ends),
        )
        edits[pk].append(
            Edit(
                start=start,
                end=end,
                quote=quote,
                replacement=replacement,
                origin=BY_HAND if origin == BY_HAND else origin,
            )
        )
    listed: dict[int, list[CorrectionPart]] = defaultdict(list)
    for pk, judgment, completion, text in rows:
        listed[judgment].append(
            CorrectionPart(completion=str(completion), text=text, edits=tuple(edits.get(pk, ())))
        )
    return listed
