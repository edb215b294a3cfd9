"""The rows of judgments that come in, written many at a time. `item_imports` decides what is written."""

import hashlib
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import connection
from django.utils import timezone

from annotation.choices import NOT_ORDERED, AssignmentState
from annotation.exchange.accepted import Accepted, ImportScene
from annotation.exchange.formats.items import ImportedEdit
from annotation.models import (
    Assignment,
    Judgment,
    bulk,
)
from annotation.record.judgment import (
    CorrectionPart,
    CritiquePart,
    Edit,
    EvidencePointer,
    JudgmentRecord,
    MissingPart,
    Origin,
    RatingPart,
    SpanPart,
    StepLabelPart,
)
from annotation.services.judgments.checks import dense_ranks
from annotation.services.judgments.storing import Keys, StoredJudgment, store_parts


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
    store_parts(
        [
            StoredJudgment(
                judgment=pk,
                assignment=assignment,
                record=_record(row),
                completions={str(place): completion for place, completion in enumerate(row.completions)},
                passages=row.item.context,
                texts={
                    str(place): row.item.completions[place].text
                    for place, _corrected in row.judgment.corrections
                },
            )
            for pk, assignment, row in zip(judgments, assignments, accepted, strict=True)
        ],
        Keys(categories=scene.categories, criteria=scene.criteria),
    )


def _record(row: Accepted) -> JudgmentRecord:
    """Return an imported judgment as a record, with completions named by their places."""
    judgment, texts = row.judgment, [completion.text for completion in row.item.completions]
    by_place = {str(place): rank for place, rank in enumerate(judgment.ranks)}
    ranks = {name: rank for name, rank in by_place.items() if rank != NOT_ORDERED}
    return JudgmentRecord(
        verdict=judgment.verdict,
        ranks=dense_ranks(ranks, by_place),
        strength=judgment.strength,
        comment=judgment.comment,
        active_seconds=judgment.active_seconds,
        demonstration=judgment.demonstration,
        spans=tuple(
            SpanPart(
                completion=str(span.completion),
                category=span.category,
                start=span.start,
                end=span.end,
                quote=texts[span.completion][span.start : span.end],
                severity=span.severity,
                note=span.note,
            )
            for span in judgment.spans
        ),
        missing=tuple(
            MissingPart(
                completion=str(lack.completion),
                category=lack.category,
                text=lack.text,
                insert_at=lack.insert_at,
                evidence=tuple(
                    EvidencePointer(passage=passage, sentence=sentence) for passage, sentence in lack.evidence
                ),
            )
            for lack in judgment.missing
        ),
        corrections=tuple(
            CorrectionPart(
                completion=str(place),
                text=text,
                edits=tuple(_edit(e, texts[place]) for e in judgment.edits if e.completion == place),
            )
            for place, text in judgment.corrections
        ),
        ratings=tuple(
            RatingPart(
                completion=str(rating.completion),
                criterion=rating.criterion,
                scale=rating.scale,
                value=rating.value,
            )
            for rating in judgment.ratings
        ),
        critiques=tuple(CritiquePart(completion=str(place), text=text) for place, text in judgment.critiques),
        step_labels=tuple(
            StepLabelPart(completion=str(label.completion), step=label.step, label=label.label)
            for label in judgment.step_labels
        ),
    )


def _edit(edit: ImportedEdit, text: str) -> Edit:
    return Edit(
        start=edit.start,
        end=edit.end,
        quote=text[edit.start : edit.end],
        replacement=edit.replacement,
        origin=Origin(
            is_unstored=edit.is_model, seed=edit.seed, sampling=dict(edit.sampling), span=edit.span
        ),
    )


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
