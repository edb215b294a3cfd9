"""Texts: prompts, completions, comparisons made of them, quarantine."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Count, F, OuterRef, Subquery
from django.db.models.functions import Coalesce, Greatest
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import FinishReason, Purpose, Split, WithholdingState
from annotation.errors import Refusal
from annotation.models import (
    Assignment,
    Candidate,
    Comparison,
    Completion,
    CompletionSource,
    Project,
    Prompt,
    TraceStep,
    User,
    Withholding,
    bulk,
)
from annotation.models.work import HOLDS_A_SLOT, shuffled
from annotation.selectors import access
from annotation.services.assignments.acquisition import score_new_comparison
from annotation.text.identity import ENOUGH_HELD_OUT, content_hash, opening_hash, split_new, text_hash
from annotation.text.self_identification import SelfNaming, find_self_naming
from annotation.text.traces import PlacedStep

# Prompts and their completions: stored once, with steps of traces and splits.

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
    # The deleted ones, too: a snapshot may hold what was said of them.
    prompts = Prompt.with_deleted.filter(project=project)
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
    if prompt := Prompt.with_deleted.filter(project=project, content_hash=digest).first():
        if prompt.deleted_at is not None:
            prompt.deleted_at = None
            prompt.save(update_fields=["deleted_at"])
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


# Comparisons as rows, written in one place: for work, gold items, votes and imports.


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


# Quarantine: comparisons that are kept from annotators until a manager decides.


def finding_in(*, prompt: Prompt, completions: Sequence[Completion]) -> Withholding | None:
    """The first completion that names its model, as a row that lacks its comparison; None if none does."""
    names = _source_names(completions)
    texts = [(completion.text, names[completion.source_id]) for completion in completions]
    match = first_naming(texts, prompt_text=lambda: asked_in(prompt))
    if match is None:
        return None
    index, naming = match
    return Withholding(completion=completions[index], start=naming.start, end=naming.end, quote=naming.quote)


def first_naming(
    texts: Sequence[tuple[str, str]], *, prompt_text: Callable[[], str]
) -> tuple[int, SelfNaming] | None:
    """The index of the first text that names its model, and where. `texts` are (text, source's name).

    `prompt_text` gives the prompt, and is called only when there is something to hold against it.
    """
    for index, (text, source_name) in enumerate(texts):
        if find_self_naming(text, prompt="", source_name=source_name) is None:
            continue
        naming = find_self_naming(text, prompt=prompt_text(), source_name=source_name)
        if naming is not None:
            return index, naming
    return None


def asked_in(prompt: Prompt) -> str:
    """All that an answer may speak of: what was said, and the passages."""
    contents = [message["content"] for message in prompt.messages]
    passages = [line for passage in prompt.context for line in (passage["title"], *passage["sentences"])]
    return "\n".join([*contents, *passages])


def decide_withholding(*, withholding: Withholding, decided_by: User, release: bool) -> Withholding:
    """Release a comparison to annotators, or keep it from them for good.

    Decided once: who comes second is refused, with the decision. Refuses who does not
    manage the project.
    """
    comparison = withholding.comparison
    access.refuse_unless_manager(decided_by, comparison.project, "manager_releases_completions")
    state = WithholdingState.RELEASED if release else WithholdingState.DISCARDED
    with transaction.atomic():
        decided = Withholding.objects.filter(pk=withholding.pk, state=WithholdingState.PENDING).update(
            state=state, decided_by=decided_by, decided_at=timezone.now()
        )
        if decided and release:
            open_free_places([comparison.pk])
    withholding.refresh_from_db(fields=["state", "decided_by", "decided_at"])
    if not decided:
        raise Refusal(
            "quarantine_decided",
            _("%(name)s decided this before you: %(decision)s."),
            name=withholding.decided_by,
            decision=withholding.get_state_display(),
        )
    return withholding


def open_free_places(comparisons: Sequence[int]) -> None:
    """Open all places of comparisons that nobody holds, as after a quarantine."""
    held = (
        Assignment.objects.filter(
            comparison=OuterRef("pk"),
            slot__isnull=False,
            state__in=HOLDS_A_SLOT,
        )
        .order_by()
        .values("comparison")
        .annotate(number=Count("pk"))
        .values("number")
    )
    Comparison.objects.filter(pk__in=comparisons).update(
        open_slots=Greatest(F("overlap") - Coalesce(Subquery(held), 0), 0)
    )


def _source_names(completions: Sequence[Completion]) -> dict[int, str]:
    field = Completion._meta.get_field("source")
    known = {
        completion.source_id: completion.source.name
        for completion in completions
        if field.is_cached(completion)
    }
    if unknown := {completion.source_id for completion in completions} - known.keys():
        known |= dict(CompletionSource.objects.filter(pk__in=unknown).values_list("pk", "name"))
    return known
