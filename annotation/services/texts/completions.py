"""Answers of models, and what is put before annotators."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.db import IntegrityError, transaction

from annotation.choices import FinishReason
from annotation.models import Comparison, Completion, CompletionSource, Project, Prompt
from annotation.services.assignments.acquisition import score_new_comparison
from annotation.services.texts.comparisons import (
    NewComparison,
    checked_ids,
    completion_set,
    same_comparison,
    write_comparison,
)
from annotation.services.texts.quarantine import finding_in
from annotation.text.identity import text_hash

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True, slots=True)
class NewCompletion:
    """One answer as it came from its source."""

    text: str
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters: temperature, top_p, max_tokens, …"""
    seed: int | None = None
    """With the sampling parameters it gives the same text again; None when that is not known."""
    finish_reason: str = FinishReason.UNKNOWN
    token_count: int | None = None


def record_completions(
    *, prompt: Prompt, source: CompletionSource, answers: Sequence[NewCompletion]
) -> list[Completion]:
    """Store answers to a prompt and return their rows in the order given.

    Idempotent by seed: where `source` has answered `prompt` with a seed before, the row of
    then is returned and stays as it is, so a job that is repeated adds nothing. Answers
    without a seed are always added.
    """
    rows = [_completion(prompt, source, answer) for answer in answers]
    with transaction.atomic():
        seeded = [row for row in rows if row.seed is not None]
        # Two workers may answer the same prompt at once: the constraint lets one of them win.
        Completion.objects.bulk_create(seeded, ignore_conflicts=True)
        stored = {
            completion.seed: completion
            for completion in Completion.objects.filter(
                prompt=prompt, source=source, seed__in=[row.seed for row in seeded]
            )
        }
        unseeded = iter(Completion.objects.bulk_create([row for row in rows if row.seed is None]))
        return [next(unseeded) if row.seed is None else stored[row.seed] for row in rows]


def create_comparison(
    *,
    prompt: Prompt,
    completions: Sequence[Completion],
    round_number: int,
    priority: int = 0,
) -> Comparison:
    """Put completions of one prompt before annotators, together.

    Idempotent: the same set of completions in the same round is one comparison, whatever
    their order. Refuses completions of another prompt, one given twice, and none at all.
    `overlap` is taken from the project as it is now. Where a completion names the model that wrote
    it, the comparison is withheld: it has no open places until a manager releases it.
    """
    ids = checked_ids(prompt, completions)
    overlap = overlap_of(prompt.project, completion_set(ids))
    new = NewComparison(
        project_id=prompt.project_id,
        prompt_id=prompt.pk,
        completions=ids,
        round_number=round_number,
        overlap=overlap,
        open_slots=overlap,
        priority=priority,
    )
    if existing := same_comparison(new):
        return existing
    withheld = finding_in(prompt=prompt, completions=completions)
    try:
        with transaction.atomic():
            comparison = write_comparison(replace(new, open_slots=0) if withheld else new)
            if withheld is not None:
                withheld.comparison = comparison
                withheld.save()
            comparison.project, comparison.prompt = prompt.project, prompt
            score_new_comparison(comparison=comparison)
            return comparison
    except IntegrityError:
        # Another request wrote it between the look and the write.
        if existing := same_comparison(new):
            return existing
        raise


def storable(text: str) -> str:
    """Return a model's text as a completion keeps it.

    PostgreSQL cannot store NUL, nor UTF-8 half a surrogate pair; a byte-level model can write them. They
    become the replacement character before anyone reads the text, because spans count on the stored one.
    """
    return _UNSTORABLE.sub("\ufffd", text)


def overlap_of(project: Project, completion_set: str) -> int:
    """Return the number of annotators for a comparison of these completions: on a share of them, some more.

    A hash of the set decides which, so that the same set always gets the same.
    """
    digest = hashlib.sha256(f"extra overlap:{completion_set}".encode()).digest()
    place = int.from_bytes(digest[:8]) / 2**64
    return project.overlap + (project.extra_overlap if place < project.extra_overlap_share else 0)


def _completion(prompt: Prompt, source: CompletionSource, answer: NewCompletion) -> Completion:
    text = storable(answer.text)
    return Completion(
        prompt=prompt,
        source=source,
        text=text,
        text_hash=text_hash(text),
        sampling=dict(answer.sampling),
        seed=answer.seed,
        finish_reason=answer.finish_reason,
        token_count=answer.token_count,
    )
