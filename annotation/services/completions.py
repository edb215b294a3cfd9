"""Answers of models, and what is put before annotators."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import IntegrityError, transaction

from annotation.choices import FinishReason, Purpose
from annotation.content import text_hash
from annotation.errors import Refusal
from annotation.models import Candidate, Comparison, Completion, CompletionSource, Project, Prompt
from annotation.services.acquisition import score_new_comparison
from annotation.services.withholding import finding_in

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
    withhold: bool = True,
) -> Comparison:
    """Put completions of one prompt before annotators, together.

    Idempotent: the same set of completions in the same round is one comparison, whatever
    their order. Refuses completions of another prompt, one given twice, and none at all.
    `overlap` is taken from the project as it is now. Where a completion names the model that wrote
    it, the comparison is withheld: it has no open places until a manager releases it. Pass
    `withhold=False` only for what was judged elsewhere already.
    """
    ids = checked_ids(prompt, completions)
    key = completion_set(ids)
    same = Comparison.objects.filter(
        project_id=prompt.project_id, round_number=round_number, completion_set=key, purpose=Purpose.WORK
    )
    if existing := same.first():
        return existing
    overlap = overlap_of(prompt.project, key)
    withheld = finding_in(prompt=prompt, completions=completions) if withhold else None
    try:
        with transaction.atomic():
            comparison = Comparison.objects.create(
                project_id=prompt.project_id,
                prompt=prompt,
                round_number=round_number,
                size=len(ids),
                overlap=overlap,
                open_slots=0 if withheld else overlap,
                priority=priority,
                completion_set=key,
            )
            Candidate.objects.bulk_create(
                Candidate(comparison=comparison, completion_id=pk, index=index)
                for index, pk in enumerate(ids)
            )
            if withheld is not None:
                withheld.comparison = comparison
                withheld.save()
            comparison.project = prompt.project
            score_new_comparison(comparison=comparison)
            return comparison
    except IntegrityError:
        # Someone else created it between the look and the write.
        return same.get()


def completion_set(ids: Sequence[int]) -> str:
    """The identity of a set of completions, whatever their order."""
    return hashlib.sha256(",".join(map(str, sorted(ids))).encode()).hexdigest()


def overlap_of(project: Project, completion_set: str) -> int:
    """How many annotators judge a comparison of these completions: on a share of them, some more.

    A hash of the set decides which, so that the same set always gets the same.
    """
    digest = hashlib.sha256(f"extra overlap:{completion_set}".encode()).digest()
    place = int.from_bytes(digest[:8]) / 2**64
    return project.overlap + (project.extra_overlap if place < project.extra_overlap_share else 0)


def checked_ids(prompt: Prompt, completions: Sequence[Completion]) -> list[int]:
    """The ids of completions that can be compared. Refuses none, one twice, and another prompt's."""
    ids = [completion.pk for completion in completions]
    if not ids:
        raise Refusal("A comparison needs at least one completion.", field="completions")
    if len(set(ids)) != len(ids):
        raise Refusal("A comparison names each completion once.", field="completions")
    if strangers := [c.pk for c in completions if c.prompt_id != prompt.pk]:
        raise Refusal(
            f"Completions {strangers} answer another prompt than {prompt.pk}; "
            "compare answers to one prompt only.",
            field="completions",
        )
    return ids


def _completion(prompt: Prompt, source: CompletionSource, answer: NewCompletion) -> Completion:
    # PostgreSQL cannot store NUL, nor UTF-8 half a surrogate pair; a byte-level model can write them. They
    # become the replacement character, here and not later, because spans count on the stored text.
    text = _UNSTORABLE.sub("�", answer.text)
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
