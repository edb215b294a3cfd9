"""The rows of judgments that come in, written many at a time. `item_imports` decides what is written."""

import hashlib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import Model
from django.utils import timezone

from annotation import bulk, corrections, selectors
from annotation.choices import AssignmentState, FinishReason, Purpose, SourceKind
from annotation.content import text_hash
from annotation.formats.items import ImportedItem, ImportedJudgment, ImportedMissing
from annotation.models import (
    Assignment,
    Candidate,
    Comparison,
    Completion,
    CompletionSource,
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
)
from annotation.models.work import shuffled
from annotation.services.answers import dense_ranks
from annotation.services.tasks import IMPORTED


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


_Key = tuple[int, int, str, int | None]
"""Prompt, source, hash of the text, seed: what makes two completions the same."""


def store_completions(judged: Sequence[tuple[ImportedItem, int]], new_prompts: set[int]) -> list[list[int]]:
    """The ids of every item's completions; what is not there yet is written.

    A seed under which another text stands already is left out: one seed gives one text.
    """
    sources = _sources({one.source or IMPORTED for item, _ in judged for one in item.completions})
    old = {prompt for _, prompt in judged} - new_prompts
    known: dict[_Key, int] = {}
    seeds: dict[tuple[int, int, int], str] = {}
    rows = Completion.objects.filter(prompt__in=old).values_list(
        "pk", "prompt_id", "source_id", "text_hash", "seed"
    )
    for pk, prompt, source, digest, seed in rows.order_by("-pk"):
        known[prompt, source, digest, seed] = pk
        if seed is not None:
            seeds[prompt, source, seed] = digest
    new: dict[_Key, Any] = {}
    keys = []
    for item, prompt in judged:
        of_item = []
        for one in item.completions:
            source, digest = sources[one.source or IMPORTED], text_hash(one.text)
            seed = one.seed
            if seed is not None and seeds.setdefault((prompt, source, seed), digest) != digest:
                seed = None
            key = (prompt, source, digest, seed)
            if key not in known:
                new.setdefault(key, one)
            of_item.append(key)
        keys.append(of_item)
    known |= dict(zip(new, bulk.reserve_ids(Completion, len(new)), strict=True))
    now = bulk.time_value(timezone.now())
    bulk.insert(
        Completion,
        [
            *("id", "prompt_id", "source_id", "text", "text_hash"),
            *("sampling", "seed", "finish_reason", "token_count", "created_at"),
        ],
        (
            (
                *(known[key], key[0], key[1], one.text, key[2], bulk.json_value(dict(one.sampling))),
                *(key[3], str(FinishReason(one.finish_reason)), None, now),
            )
            for key, one in new.items()
        ),
    )
    return [[known[key] for key in of_item] for of_item in keys]


def _sources(names: Iterable[str]) -> dict[str, int]:
    wanted = set(names)
    found = dict(CompletionSource.objects.filter(name__in=wanted).values_list("name", "pk"))
    for name in wanted - found.keys():
        found[name] = CompletionSource.objects.get_or_create(name=name, defaults={"kind": SourceKind.IMPORT})[
            0
        ].pk
    return found


def write_comparisons(
    project: Project, new: Mapping[int, tuple[str, int, Sequence[int]]], overlaps: Mapping[int, int]
) -> None:
    """Write comparisons, id → identity, prompt and completions, in the newest round, with no open place."""
    round_number = selectors.current_round(project)
    now = bulk.time_value(timezone.now())
    bulk.insert(
        Comparison,
        [
            *("id", "project_id", "prompt_id", "round_number", "purpose", "size", "overlap", "open_slots"),
            *("priority", "acquisition_score", "shuffle", "completion_set", "created_at"),
        ],
        (
            (
                *(pk, project.pk, prompt, round_number, str(Purpose.WORK), len(ids), max(overlaps[pk], 1), 0),
                *(0, 0.0, shuffled(), digest, now),
            )
            for pk, (digest, prompt, ids) in new.items()
        ),
    )
    _insert(
        Candidate,
        ["comparison_id", "completion_id", "index"],
        [(pk, one, index) for pk, (_, _, ids) in new.items() for index, one in enumerate(ids)],
    )


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
    _insert(RankedCompletion, ["judgment_id", "completion_id", "rank"], list(_ranks(numbered)))
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
    _insert(
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
    _insert(
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
    _insert(
        Rating,
        ["judgment_id", "completion_id", "criterion_id", "value"],
        [
            (pk, one.completions[rating.completion], scene.criteria[rating.criterion], rating.value)
            for pk, one in numbered
            for rating in one.judgment.ratings
        ],
    )
    _insert(
        Critique,
        ["judgment_id", "completion_id", "text"],
        [(pk, one.completions[at], text) for pk, one in numbered for at, text in one.judgment.critiques],
    )
    _insert(
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
    ids = _insert(Correction, ["judgment_id", "completion_id", "text"], [row[:3] for row in corrected])
    _insert(
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


def _insert(model: type[Model], names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Sequence[int]:
    ids = bulk.reserve_ids(model, len(rows))
    bulk.insert(model, ["id", *names], ((pk, *row) for pk, row in zip(ids, rows, strict=True)))
    return ids
