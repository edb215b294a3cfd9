"""The rows of judgments that come in, written many at a time. `item_imports` decides what is written."""

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import connection
from django.utils import timezone

from annotation.choices import NOT_ORDERED, AssignmentState
from annotation.exchange.accepted import Accepted, ImportScene
from annotation.exchange.formats.items import ImportedItem, ImportedJudgment, ImportedMissing
from annotation.exchange.import_corrections import write_corrections
from annotation.models import (
    Assignment,
    Critique,
    Demonstration,
    Judgment,
    LabelledStep,
    MissingInfo,
    RankedCompletion,
    Rating,
    SpanFlag,
    TraceStep,
    bulk,
)
from annotation.services.judgments.checks import dense_ranks


def write_accepted(scene: ImportScene, accepted: Sequence[Accepted]) -> None:
    """Write judgments with all that belongs to them."""
    assignments = bulk.reserve_ids(Assignment, len(accepted))
    judgments = bulk.reserve_ids(Judgment, len(accepted))
    now = timezone.now()
    times = [_time(row.judgment.created_at, now) for row in accepted]
    bulk.insert(
        Assignment,
        [
            *("id", "comparison_id", "annotator_id", "slot", "retest_of_id", "arm", "state"),
            *("display_order", "reason", "leased_at", "lease_expires_at", "closed_at"),
        ],
        (
            (
                *(pk, row.comparison, row.annotator, row.slot, None, "", str(AssignmentState.SUBMITTED)),
                *(bulk.json_value(_display_order(row)), "", time, time, time),
            )
            for pk, row, time in zip(assignments, accepted, times, strict=True)
        ),
    )
    bulk.insert(
        Judgment,
        [
            *("id", "assignment_id", "comparison_id", "annotator_id", "guideline_id", "verdict", "strength"),
            *("comment", "active_seconds", "idempotency_key", "supersedes_id", "imported_from", "created_at"),
            "blind",
        ],
        (
            (
                *(pk, assignment, row.comparison, row.annotator, None, str(row.judgment.verdict)),
                *(row.judgment.strength, row.judgment.comment, row.judgment.active_seconds),
                *(uuid_value(row.key), None, bulk.json_value(dict(row.origin)), time),
                row.judgment.more.get("blind") is not False,
            )
            for pk, assignment, row, time in zip(judgments, assignments, accepted, times, strict=True)
        ),
    )
    numbered = list(zip(judgments, accepted, strict=True))
    bulk.insert_numbered(RankedCompletion, ["judgment_id", "completion_id", "rank"], list(_ranks(numbered)))
    detailed = [(pk, row) for pk, row in numbered if _has_details(row.judgment)]
    _write_details(scene, detailed, dict(zip(judgments, assignments, strict=True)))


def _has_details(judgment: ImportedJudgment) -> bool:
    return bool(
        judgment.spans
        or judgment.missing
        or judgment.corrections
        or judgment.ratings
        or judgment.critiques
        or judgment.step_labels
        or judgment.demonstration
    )


def _ranks(numbered: Sequence[tuple[int, Accepted]]) -> Iterator[tuple[int, int, int]]:
    for pk, row in numbered:
        by_place = dict(zip(row.completions, row.judgment.ranks, strict=False))
        ranks = {completion: rank for completion, rank in by_place.items() if rank != NOT_ORDERED}
        for completion, rank in dense_ranks(ranks, by_place).items():
            yield pk, completion, rank


def _write_details(
    scene: ImportScene, numbered: Sequence[tuple[int, Accepted]], assignments: Mapping[int, int]
) -> None:
    if not numbered:
        return
    span_ids = bulk.insert_numbered(
        SpanFlag,
        ["judgment_id", "completion_id", "category_id", "start", "end", "quote", "severity", "note"],
        [
            (
                *(pk, row.completions[span.completion], scene.categories[span.category]),
                *(span.start, span.end, row.item.completions[span.completion].text[span.start : span.end]),
                *(span.severity, span.note),
            )
            for pk, row in numbered
            for span in row.judgment.spans
        ],
    )
    bulk.insert_numbered(
        MissingInfo,
        [
            *("judgment_id", "completion_id", "category_id", "text", "insert_at"),
            *("passage", "sentence", "quote", "further_evidence"),
        ],
        [
            (pk, row.completions[lack.completion], scene.categories[lack.category], *_missing(row.item, lack))
            for pk, row in numbered
            for lack in row.judgment.missing
        ],
    )
    _write_step_labels(numbered)
    bulk.insert_numbered(
        Rating,
        ["judgment_id", "completion_id", "criterion_id", "value"],
        [
            (pk, row.completions[rating.completion], scene.criteria[rating.criterion], rating.value)
            for pk, row in numbered
            for rating in row.judgment.ratings
        ],
    )
    bulk.insert_numbered(
        Critique,
        ["judgment_id", "completion_id", "text"],
        [(pk, row.completions[at], text) for pk, row in numbered for at, text in row.judgment.critiques],
    )
    bulk.insert_numbered(
        Demonstration,
        ["judgment_id", "text"],
        [(pk, row.judgment.demonstration) for pk, row in numbered if row.judgment.demonstration],
    )
    spans = [
        (pk, s.completion, s.category, s.start, s.end) for pk, row in numbered for s in row.judgment.spans
    ]
    write_corrections(numbered, assignments, dict(zip(spans, span_ids, strict=True)))


def _missing(item: ImportedItem, lack: ImportedMissing) -> tuple[Any, ...]:
    evidence = [
        {"passage": passage, "sentence": sentence, "quote": _stands(item, passage, sentence)}
        for passage, sentence in lack.evidence
    ]
    if not evidence:
        return lack.text, lack.insert_at, None, None, "", "[]"
    first, *further = evidence
    return (
        *(lack.text, lack.insert_at, first["passage"], first["sentence"], first["quote"]),
        bulk.json_value(further),
    )


def _stands(item: ImportedItem, passage: int, sentence: int | None) -> str:
    document = item.context[passage]
    return str(document["title"] if sentence is None else document["sentences"][sentence])


def _display_order(row: Accepted) -> list[int]:
    """As it was shown; where nobody wrote that down, drawn by the judgment's key: no side is favoured."""
    if row.judgment.display_order:
        return [row.completions[place] for place in row.judgment.display_order]
    return sorted(row.completions, key=lambda pk: hashlib.sha256(row.key.bytes + str(pk).encode()).digest())


def _time(timestamp: str, now: datetime) -> Any:
    return bulk.time_value(datetime.fromisoformat(timestamp) if timestamp else now)


def uuid_value(value: uuid.UUID) -> str:
    """A value for a `UUIDField`, as `bulk.insert` takes it."""
    return str(value) if connection.features.has_native_uuid_field else value.hex


def _write_step_labels(numbered: Sequence[tuple[int, Accepted]]) -> None:
    labels = [
        (pk, row.completions[label.completion], label)
        for pk, row in numbered
        for label in row.judgment.step_labels
    ]
    if not labels:
        return
    steps = TraceStep.objects.filter(completion__in={completion for _, completion, _ in labels})
    ids = {(of, index): pk for pk, of, index in steps.values_list("pk", "completion_id", "index")}
    bulk.insert_numbered(
        LabelledStep,
        ["judgment_id", "step_id", "label"],
        [(pk, ids[completion, label.step], label.label) for pk, completion, label in labels],
    )
