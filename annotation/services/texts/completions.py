"""Prompts and their completions: stored once, with steps of traces and splits."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from django.db import IntegrityError, transaction

from annotation.choices import FinishReason, Split
from annotation.models import Comparison, Completion, CompletionSource, Project, Prompt, TraceStep, bulk
from annotation.services.assignments.acquisition import score_new_comparison
from annotation.services.texts.comparisons import (
    NewComparison,
    checked_ids,
    completion_set,
    same_comparison,
    write_comparison,
)
from annotation.services.texts.quarantine import finding_in
from annotation.text.identity import ENOUGH_HELD_OUT, content_hash, opening_hash, split_new, text_hash
from annotation.text.traces import PlacedStep

_EARLY = 1_000
"""Held-out prompts among which all are that the quota added: it is met by the first `ENOUGH_HELD_OUT`."""


def assign_splits(
    *,
    project: Project,
    openings: Mapping[str, str],
    stated: Mapping[str, Split] = MappingProxyType({}),
) -> dict[str, Split]:
    """Return the side of each new prompt, by content hash; prompts that are there keep theirs.

    openings: each prompt's content hash → its `opening_hash`, which decides: all turns of a conversation are
    on one side. stated: the sides that a file states, by content hash; they count where the project has no
    turn of the conversation yet.

    Call it in the transaction that adds the prompts, with the project locked: of two imports at once the
    second counts what the first has added.
    """
    if not openings:
        return {}
    there = _sides_there(project, {opening for digest, opening in openings.items() if opening != digest})
    sides = {openings[digest]: side for digest, side in stated.items()} | there
    prompts = Prompt.objects.filter(project=project)
    # Counted no further than the quota goes: a large project is not counted for every batch.
    held_out = prompts.filter(split=Split.HELD_OUT)[:ENOUGH_HELD_OUT].count()
    total = prompts.count() if held_out < ENOUGH_HELD_OUT else 0
    sides |= split_new(set(openings.values()) - sides.keys(), prompts=total, held_out=held_out)
    return {
        digest: there.get(opening) or stated.get(digest) or sides[opening]
        for digest, opening in openings.items()
    }


def _sides_there(project: Project, openings: set[str]) -> dict[str, Split]:
    """Return the sides of conversations of which the project has an earlier or another turn."""
    if not openings:
        return {}
    prompts = Prompt.objects.filter(project=project)
    # A hash in the held-out share is held out whenever it comes: the quota's additions alone need a look.
    early = prompts.filter(split=Split.HELD_OUT).order_by("pk").values_list("messages", "context")[:_EARLY]
    there = {opening_hash(messages, context) for messages, context in early if len(messages) > 1}
    known = prompts.filter(content_hash__in=openings).values_list("content_hash", "split")
    return {**dict.fromkeys(there & openings, Split.HELD_OUT), **{key: Split(side) for key, side in known}}


def write_steps(traces: Iterable[tuple[int, Sequence[PlacedStep]]]) -> None:
    """Write the steps of new completions, by id. Call it in the transaction that writes the completions."""
    bulk.insert_numbered(
        TraceStep,
        [
            *("completion_id", "index", "kind", "role", "tool", "call", "is_error"),
            *("start", "body", "end", "arguments"),
        ],
        [
            (
                *(completion, index, str(step.kind), step.role, step.tool, step.call, step.is_error),
                *(step.start, step.body, step.end),
                None if step.arguments is None else bulk.json_value(step.arguments),
            )
            for completion, steps in traces
            for index, step in enumerate(steps)
        ],
    )


@transaction.atomic
def find_or_add_prompt(
    *,
    project: Project,
    messages: Sequence[Any],
    context: Sequence[Any] = (),
    references: Sequence[str] = (),
    tags: Sequence[str] = (),
    split: Split | str | None = None,
) -> Prompt:
    """Return the project's prompt with these messages and this context; add it when there is none.

    split: of the new prompt, where it derives from another whose side it must keep.
    """
    digest = content_hash(messages, context)
    # Of two who add one prompt at once the second finds it.
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)
    if prompt := Prompt.objects.filter(project=project, content_hash=digest).first():
        return prompt
    return Prompt.objects.create(
        project=project,
        messages=list(messages),
        context=list(context),
        references=list(references),
        tags=list(tags),
        content_hash=digest,
        split=split
        or assign_splits(project=project, openings={digest: opening_hash(messages, context)})[digest],
    )


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
    overlap: int | None = None,
) -> Comparison:
    """Put completions of one prompt before annotators, together.

    Idempotent: the same set of completions in the same round is one comparison, whatever
    their order. Refuses completions of another prompt, one given twice, and none at all.
    `overlap`, if not given, is taken from the project as it is now. Where a completion names the model that
    wrote it, the comparison is withheld: it has no open places until a manager releases it.
    """
    ids = checked_ids(prompt, completions)
    if overlap is None:
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
