"""The rows of judgments that come in, written many at a time. `item_imports` decides what is written."""

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection
from django.utils import timezone

from annotation.choices import AssignmentState
from annotation.exchange.formats.items import ImportedItem, ImportedJudgment, ImportedMissing
from annotation.models import (
    Assignment,
    Correction,
    CorrectionEdit,
    Critique,
    Demonstration,
    Judgment,
    MissingInfo,
    Project,
    RankedCompletion,
    Rating,
    SpanFlag,
    bulk,
)
from annotation.services.judgments.checks import dense_ranks
from annotation.text import edits as corrections


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportScene:
    """The project that gets it, with ids of what items name by key."""

    project: Project
    categories: Mapping[str, int]
    criteria: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    """One judgment that is to be written."""

    item: ImportedItem
    judgment: ImportedJudgment
    comparison: int
    completions: Sequence[int]
    annotator: int
    slot: int
    key: uuid.UUID
    origin: Mapping[str, Any]


def write_accepted(scene: ImportScene, accepted: Sequence[Accepted]) -> None:
    """Write judgments with all that belongs to them."""
    assignments = bulk.reserve_ids(Assignment, len(accepted))
    judgments = bulk.reserve_ids(Judgment, len(accepted))
    now = timezone.now()
    times = [_time(one.judgment.created_at, now) for one in accepted]
    bulk.insert(
        Assignment,
        [
            *("id", "comparison_id", "annotator_id", "slot", "retest_of_id", "arm", "state"),
            *("display_order", "reason", "leased_at", "lease_expires_at", "closed_at"),
        ],
        (
            (
                *(pk, one.comparison, one.annotator, one.slot, None, "", str(AssignmentState.SUBMITTED)),
                *(bulk.json_value(_display_order(one)), "", time, time, time),
            )
            for pk, one, time in zip(assignments, accepted, times, strict=True)
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
                *(pk, assignment, one.comparison, one.annotator, None, str(one.judgment.verdict)),
                *(one.judgment.strength, one.judgment.comment, one.judgment.active_seconds),
                *(_uuid_value(one.key), None, bulk.json_value(dict(one.origin)), time),
                one.judgment.more.get("blind") is not False,
            )
            for pk, assignment, one, time in zip(judgments, assignments, accepted, times, strict=True)
        ),
    )
    numbered = list(zip(judgments, accepted, strict=True))
    bulk.insert_numbered(RankedCompletion, ["judgment_id", "completion_id", "rank"], list(_ranks(numbered)))
    _write_details(scene, [(pk, one) for pk, one in numbered if _has_details(one.judgment)])


def _has_details(judgment: ImportedJudgment) -> bool:
    return bool(
        judgment.spans
        or judgment.missing
        or judgment.corrections
        or judgment.ratings
        or judgment.critiques
        or judgment.demonstration
    )


def _ranks(numbered: Sequence[tuple[int, Accepted]]) -> Iterator[tuple[int, int, int]]:
    for pk, one in numbered:
        ranks = dict(zip(one.completions, one.judgment.ranks, strict=False))
        for completion, rank in dense_ranks(ranks).items():
            yield pk, completion, rank


def _write_details(scene: ImportScene, numbered: Sequence[tuple[int, Accepted]]) -> None:
    if not numbered:
        return
    bulk.insert_numbered(
        SpanFlag,
        ["judgment_id", "completion_id", "category_id", "start", "end", "quote", "severity", "note"],
        [
            (
                *(pk, one.completions[span.completion], scene.categories[span.category]),
                *(span.start, span.end, one.item.completions[span.completion].text[span.start : span.end]),
                *(span.severity, span.note),
            )
            for pk, one in numbered
            for span in one.judgment.spans
        ],
    )
    bulk.insert_numbered(
        MissingInfo,
        [
            *("judgment_id", "completion_id", "category_id", "text", "insert_at"),
            *("passage", "sentence", "quote", "further_evidence"),
        ],
        [
            (pk, one.completions[lack.completion], scene.categories[lack.category], *_missing(one.item, lack))
            for pk, one in numbered
            for lack in one.judgment.missing
        ],
    )
    bulk.insert_numbered(
        Rating,
        ["judgment_id", "completion_id", "criterion_id", "value"],
        [
            (pk, one.completions[rating.completion], scene.criteria[rating.criterion], rating.value)
            for pk, one in numbered
            for rating in one.judgment.ratings
        ],
    )
    bulk.insert_numbered(
        Critique,
        ["judgment_id", "completion_id", "text"],
        [(pk, one.completions[at], text) for pk, one in numbered for at, text in one.judgment.critiques],
    )
    bulk.insert_numbered(
        Demonstration,
        ["judgment_id", "text"],
        [(pk, one.judgment.demonstration) for pk, one in numbered if one.judgment.demonstration],
    )
    _write_corrections(numbered)


def _write_corrections(numbered: Sequence[tuple[int, Accepted]]) -> None:
    corrected = [
        (pk, one.completions[at], text, one.item.completions[at].text)
        for pk, one in numbered
        for at, text in one.judgment.corrections
    ]
    ids = bulk.insert_numbered(
        Correction, ["judgment_id", "completion_id", "text"], [row[:3] for row in corrected]
    )
    bulk.insert_numbered(
        CorrectionEdit,
        ["correction_id", "index", "start", "end", "quote", "replacement"],
        [
            (correction, index, edit.start, edit.end, edit.quote, edit.replacement)
            for correction, (_, _, text, original) in zip(ids, corrected, strict=True)
            for index, edit in enumerate(corrections.edits(original, text))
        ],
    )


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
    found = item.context[passage]
    return str(found["title"] if sentence is None else found["sentences"][sentence])


def _display_order(one: Accepted) -> list[int]:
    """As it was shown; where nobody wrote that down, drawn by the judgment's key: no side is favoured."""
    if one.judgment.display_order:
        return [one.completions[place] for place in one.judgment.display_order]
    return sorted(one.completions, key=lambda pk: hashlib.sha256(one.key.bytes + str(pk).encode()).digest())


def _time(given: str, now: datetime) -> Any:
    return bulk.time_value(datetime.fromisoformat(given) if given else now)


def _uuid_value(value: uuid.UUID) -> str:
    return str(value) if connection.features.has_native_uuid_field else value.hex
