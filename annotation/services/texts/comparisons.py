"""Comparisons as rows, written in one place: for work, gold items, votes and imports."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import Purpose
from annotation.errors import Refusal
from annotation.models import Candidate, Comparison, Completion, Prompt, bulk
from annotation.models.work import shuffled


@dataclass(frozen=True, kw_only=True, slots=True)
class NewComparison:
    """A comparison to write: completions of one prompt, in the order in which they are recorded."""

    project_id: int
    prompt_id: int
    completions: Sequence[int]
    round_number: int
    purpose: Purpose = Purpose.WORK
    overlap: int = 1
    open_slots: int = 0
    priority: int = 0
    metadata: Mapping[str, Any] | None = None
    file_import_id: int | None = None
    """The import that brings it."""


def completion_set(ids: Sequence[int]) -> str:
    """The identity of a set of completions, whatever their order."""
    return hashlib.sha256(",".join(map(str, sorted(ids))).encode()).hexdigest()


def write_comparisons(new: Mapping[int, NewComparison]) -> None:
    """Write comparisons under ids of `bulk.reserve_ids`. Call it inside a transaction."""
    now = bulk.time_value(timezone.now())
    bulk.insert(
        Comparison,
        [
            *("id", "project_id", "prompt_id", "round_number", "purpose", "size", "overlap", "open_slots"),
            *("priority", "acquisition_score", "shuffle", "completion_set", "created_at"),
            *("metadata", "file_import_id"),
        ],
        (
            (
                *(
                    pk,
                    comparison.project_id,
                    comparison.prompt_id,
                    comparison.round_number,
                    str(comparison.purpose),
                    len(comparison.completions),
                ),
                *(comparison.overlap, comparison.open_slots, comparison.priority, 0.0, shuffled()),
                *(completion_set(comparison.completions), now),
                bulk.json_value(dict(comparison.metadata)) if comparison.metadata else None,
                comparison.file_import_id,
            )
            for pk, comparison in new.items()
        ),
    )
    bulk.insert_numbered(
        Candidate,
        ["comparison_id", "completion_id", "index"],
        [
            (pk, member, index)
            for pk, comparison in new.items()
            for index, member in enumerate(comparison.completions)
        ],
    )


def write_comparison(new: NewComparison) -> Comparison:
    """Write one comparison. Raises `IntegrityError` where the same is there for the same purpose."""
    with transaction.atomic():
        (pk,) = bulk.reserve_ids(Comparison, 1)
        write_comparisons({pk: new})
        return Comparison.objects.get(pk=pk)


def same_comparison(new: NewComparison) -> Comparison | None:
    """The comparison of the same completions in the same round for the same purpose."""
    return Comparison.objects.filter(
        project_id=new.project_id,
        round_number=new.round_number,
        completion_set=completion_set(new.completions),
        purpose=new.purpose,
    ).first()


def find_or_write_comparison(new: NewComparison) -> Comparison:
    """The comparison of these completions; written where there is none."""
    if existing := same_comparison(new):
        return existing
    try:
        return write_comparison(new)
    except IntegrityError:
        # Another request wrote it between the look and the write.
        if existing := same_comparison(new):
            return existing
        raise


def checked_ids(prompt: Prompt, completions: Sequence[Completion]) -> list[int]:
    """The ids of completions that can be compared. Refuses none, one twice, and another prompt's."""
    ids = [completion.pk for completion in completions]
    if not ids:
        raise Refusal(
            "completions_missing", _("A comparison needs at least one response."), field="completions"
        )
    if len(set(ids)) != len(ids):
        raise Refusal(
            "completion_named_twice", _("A comparison names each response once."), field="completions"
        )
    if strangers := [c.pk for c in completions if c.prompt_id != prompt.pk]:
        raise Refusal(
            "completions_of_other_prompts",
            _(
                "The responses %(strangers)s belong to another prompt than %(prompt)s. Compare "
                "responses to one prompt only."
            ),
            field="completions",
            strangers=strangers,
            prompt=prompt.pk,
        )
    return ids
