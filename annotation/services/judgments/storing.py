"""Store the parts of judgments: of one that was submitted as of thousands that are imported."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.utils import timezone

from annotation.models import (
    Continuation,
    Correction,
    CorrectionEdit,
    Critique,
    Demonstration,
    LabelledStep,
    MissingInfo,
    QuestionAnswer,
    RankedCompletion,
    Rating,
    RubricScore,
    SpanFlag,
    TraceStep,
    bulk,
)
from annotation.record.judgment import CorrectionPart, Edit, JudgmentRecord, MissingPart, SpanPart
from annotation.text.edits import applied, edits


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredJudgment:
    """A judgment whose row is written, and what its parts refer to."""

    judgment: int
    assignment: int
    record: JudgmentRecord
    completions: Mapping[str, int]
    """Name of a completion in the record → its id."""
    passages: Sequence[Mapping[str, Any]] = ()
    """Context of the prompt, which evidence points at."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Name of a completion that is corrected → its text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartKeys:
    """Ids of what parts name by key."""

    categories: Mapping[str, int]
    criteria: Mapping[str, int]
    rubric: Mapping[str, int] = field(default_factory=dict)
    """Of the criteria by which an AI annotator scored."""
    questions: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Key and version of a question → id of the version."""


def store_parts(judgments: Sequence[StoredJudgment], keys: PartKeys) -> None:
    """Write all that belongs to these judgments. Call it in the transaction that writes their rows.

    The records are checked: nothing here refuses. An edit of a model without a stored continuation gets one.
    """
    _store(
        RankedCompletion,
        ["judgment_id", "completion_id", "rank"],
        [
            (row.judgment, row.completions[name], rank)
            for row in judgments
            for name, rank in row.record.ranks.items()
        ],
    )
    detailed = [row for row in judgments if row.record.has_details]
    if not detailed:
        return
    spans = _store_spans(detailed, keys)
    _store(
        MissingInfo,
        [
            *("judgment_id", "completion_id", "category_id", "text", "insert_at"),
            *("passage", "sentence", "quote", "further_evidence"),
        ],
        [
            (
                *(row.judgment, row.completions[part.completion], keys.categories[part.category]),
                *(part.text, part.insert_at, *_evidence(part, row.passages)),
            )
            for row in detailed
            for part in row.record.missing
        ],
    )
    _store_step_labels(detailed)
    _store(
        Rating,
        ["judgment_id", "completion_id", "criterion_id", "value"],
        [
            (row.judgment, row.completions[part.completion], keys.criteria[part.criterion], part.value)
            for row in detailed
            for part in row.record.ratings
        ],
    )
    _store(
        RubricScore,
        ["judgment_id", "completion_id", "criterion_id", "value", "reason"],
        [
            (
                *(row.judgment, row.completions[part.completion], keys.rubric[part.criterion]),
                *(part.value, part.reason),
            )
            for row in detailed
            for part in row.record.rubric_scores
        ],
    )
    _store(
        Critique,
        ["judgment_id", "completion_id", "text"],
        [
            (row.judgment, row.completions[part.completion], part.text)
            for row in detailed
            for part in row.record.critiques
        ],
    )
    _store_answers(detailed, keys, spans)
    _store(
        Demonstration,
        ["judgment_id", "text"],
        [(row.judgment, row.record.demonstration) for row in detailed if row.record.demonstration],
    )
    _store_corrections(detailed, spans)


def _quote(passages: Sequence[Mapping[str, Any]], passage: int, sentence: int | None) -> str:
    """Return the text of the context that evidence points at; without a sentence, the passage's title."""
    document = passages[passage]
    return str(document["title"] if sentence is None else document["sentences"][sentence])


def _store(model: Any, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    if rows:
        bulk.insert(model, names, rows)


def _relations(row: StoredJudgment, part: SpanPart) -> str | None:
    """Return what a span is to others, by their places: rows are not read in the order of the record."""
    if not part.relations:
        return None
    others = [(link.kind, row.record.spans[link.to]) for link in part.relations]
    return bulk.json_value(
        [
            {
                "kind": kind,
                "completion": row.completions[other.completion],
                "category": other.category,
                "start": other.start,
                "end": other.end,
            }
            for kind, other in others
        ]
    )


_Spans = Mapping[tuple[int, str, str, int, int], int]
"""Judgment, completion, category, start and end → id of the span."""


def _store_spans(judgments: Sequence[StoredJudgment], keys: PartKeys) -> _Spans:
    spans = [(row, part) for row in judgments for part in row.record.spans]
    if not spans:
        return {}
    ids = bulk.insert_numbered(
        SpanFlag,
        [
            "judgment_id",
            "completion_id",
            "category_id",
            "start",
            "end",
            "quote",
            "severity",
            "note",
            "relations",
        ],
        [
            (
                *(row.judgment, row.completions[part.completion], keys.categories[part.category]),
                *(part.start, part.end, part.quote, part.severity, part.note),
                _relations(row, part),
            )
            for row, part in spans
        ],
    )
    return {
        (row.judgment, part.completion, *part.place): pk for (row, part), pk in zip(spans, ids, strict=True)
    }


def _store_answers(judgments: Sequence[StoredJudgment], keys: PartKeys, spans: _Spans) -> None:
    steps = _step_ids(
        row.completions[part.completion]
        for row in judgments
        for part in row.record.answers
        if part.step is not None and part.completion
    )
    rows = []
    for row in judgments:
        for part in row.record.answers:
            completion = row.completions[part.completion] if part.completion else None
            rows.append(
                (
                    *(row.judgment, keys.questions[part.question, part.version or 0], completion),
                    None if part.step is None or completion is None else steps[completion, part.step],
                    spans[row.judgment, part.completion or "", *part.span] if part.span else None,
                    bulk.json_value(part.value),
                )
            )
    _store(
        QuestionAnswer,
        ["judgment_id", "version_id", "completion_id", "step_id", "span_id", "value"],
        rows,
    )


def _step_ids(completions: Iterable[int]) -> dict[tuple[int, int], int]:
    """Return completion and index → id of the step. No query without a completion."""
    named = set(completions)
    steps = TraceStep.objects.filter(completion__in=named) if named else TraceStep.objects.none()
    return {(of, index): pk for pk, of, index in steps.values_list("pk", "completion_id", "index")}


def _evidence(part: MissingPart, passages: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
    """Return passage, sentence and quote of the first evidence, and the further evidence as JSON."""
    if not part.evidence:
        return None, None, "", "[]"
    first, *further = (
        {
            "passage": pointer.passage,
            "sentence": pointer.sentence,
            "quote": _quote(passages, pointer.passage, pointer.sentence),
        }
        for pointer in part.evidence
    )
    return first["passage"], first["sentence"], first["quote"], bulk.json_value(further)


def _store_step_labels(judgments: Sequence[StoredJudgment]) -> None:
    labels = [
        (row.judgment, row.completions[part.completion], part.step, part.label)
        for row in judgments
        for part in row.record.step_labels
    ]
    ids = _step_ids(completion for _, completion, *_ in labels)
    _store(
        LabelledStep,
        ["judgment_id", "step_id", "label"],
        [(pk, ids[completion, step], label) for pk, completion, step, label in labels],
    )


@dataclass(frozen=True, slots=True)
class _Corrected:
    """A correction of a stored judgment, with its edits."""

    row: StoredJudgment
    part: CorrectionPart
    edits: Sequence[Edit]

    @property
    def original(self) -> str:
        return self.row.texts[self.part.completion]

    @property
    def completion(self) -> int:
        return self.row.completions[self.part.completion]

    def before(self, index: int) -> str:
        """Return the corrected text up to an edit."""
        return applied(self.original[: self.edits[index].start], self.edits[:index])


def _store_corrections(judgments: Sequence[StoredJudgment], spans: _Spans) -> None:
    corrected = [
        _Corrected(row, part, part.edits or edits(row.texts[part.completion], part.text))
        for row in judgments
        for part in row.record.corrections
    ]
    if not corrected:
        return
    ids = bulk.insert_numbered(
        Correction,
        ["judgment_id", "completion_id", "text"],
        [(correction.row.judgment, correction.completion, correction.part.text) for correction in corrected],
    )
    continuations = _store_continuations(corrected)
    _store(
        CorrectionEdit,
        [
            *("correction_id", "index", "start", "end", "quote", "replacement"),
            *("continuation_id", "span_flag_id"),
        ],
        [
            (
                *(pk, index, edit.start, edit.end, edit.quote, edit.replacement),
                edit.origin.continuation or (next(continuations) if edit.origin.is_unstored else None),
                (
                    spans[correction.row.judgment, correction.part.completion, *edit.origin.span]
                    if edit.origin.span
                    else None
                ),
            )
            for pk, correction in zip(ids, corrected, strict=True)
            for index, edit in enumerate(correction.edits)
        ],
    )


def _store_continuations(corrected: Sequence[_Corrected]) -> Iterator[int]:
    """Write a continuation for each edit of a model that has none; its prefix is the text before it."""
    now = bulk.time_value(timezone.now())
    rows = [
        (
            *(correction.row.assignment, correction.completion, correction.before(index)),
            *(edit.replacement, edit.origin.seed, bulk.json_value(dict(edit.origin.sampling)), "", now),
        )
        for correction in corrected
        for index, edit in enumerate(correction.edits)
        if edit.origin.is_unstored
    ]
    if not rows:
        return iter(())
    return iter(
        bulk.insert_numbered(
            Continuation,
            [
                *("assignment_id", "completion_id", "prefix", "text"),
                *("seed", "sampling", "finish_reason", "created_at"),
            ],
            rows,
        )
    )
