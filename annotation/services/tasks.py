"""Comparisons that come ready-made: prompts whose answers are already there, many at a time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from django.utils import timezone

from annotation import bulk, selectors
from annotation.choices import FinishReason, Purpose, SourceKind
from annotation.content import text_hash
from annotation.formats.prompts_jsonl import ParsedCompletion
from annotation.models import (
    Candidate,
    Comparison,
    Completion,
    CompletionSource,
    Project,
    Prompt,
    Withholding,
)
from annotation.models.work import shuffled
from annotation.services.completions import completion_set, overlap_of
from annotation.services.withholding import asked_in, first_naming

IMPORTED = "imported answers"
"""The source of answers of which the file does not say who wrote them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One prompt of the database and the answers to compare."""

    prompt_id: int
    completions: Sequence[ParsedCompletion]


def create_tasks(*, project: Project, tasks: Sequence[Task], new_prompts: set[int]) -> int:
    """Write the answers and their comparisons, in the newest round; how many comparisons were new.

    Idempotent: an answer of the same source with the same text is the one that is there, and the
    same set of answers is compared once, in whatever round that was. `new_prompts` were written in
    this transaction: nothing needs to be looked up for them. Call it inside a transaction.
    """
    completions = _completions(tasks, new_prompts)
    wanted: dict[str, tuple[Task, list[int]]] = {}
    for task, ids in zip(tasks, completions, strict=True):
        wanted.setdefault(completion_set(ids), (task, ids))
    old = [key for key, (task, _) in wanted.items() if task.prompt_id not in new_prompts]
    there = Comparison.objects.filter(project=project, completion_set__in=old, purpose=Purpose.WORK)
    for key in set(there.values_list("completion_set", flat=True)):
        del wanted[key]
    _write_comparisons(project, wanted)
    return len(wanted)


def _completions(tasks: Sequence[Task], new_prompts: set[int]) -> list[list[int]]:
    """The ids of every task's answers; what is not there yet is written."""
    sources = _sources({one.source or IMPORTED for task in tasks for one in task.completions})
    keys = [
        [(task.prompt_id, sources[one.source or IMPORTED], text_hash(one.text)) for one in task.completions]
        for task in tasks
    ]
    old = {task.prompt_id for task in tasks} - new_prompts
    known = {
        (prompt, source, digest): pk
        for pk, prompt, source, digest in Completion.objects.filter(prompt__in=old).values_list(
            "pk", "prompt_id", "source_id", "text_hash"
        )
    }
    new = {
        key: one.text
        for task, of_task in zip(tasks, keys, strict=True)
        for key, one in zip(of_task, task.completions, strict=True)
        if key not in known
    }
    ids = dict(zip(new, bulk.reserve_ids(Completion, len(new)), strict=True))
    now = bulk.time_value(timezone.now())
    bulk.insert(
        Completion,
        [
            *("id", "prompt_id", "source_id", "text", "text_hash"),
            *("sampling", "seed", "finish_reason", "token_count", "created_at"),
        ],
        (
            (ids[key], key[0], key[1], text, key[2], "{}", None, str(FinishReason.UNKNOWN), None, now)
            for key, text in new.items()
        ),
    )
    return [[known.get(key) or ids[key] for key in of_task] for of_task in keys]


def _sources(names: Iterable[str]) -> dict[str, int]:
    found = {}
    for name in names:
        source, _ = CompletionSource.objects.get_or_create(name=name, defaults={"kind": SourceKind.IMPORT})
        found[name] = source.pk
    return found


def _write_comparisons(project: Project, wanted: dict[str, tuple[Task, list[int]]]) -> None:
    ids = bulk.reserve_ids(Comparison, len(wanted))
    withheld = _withheld(dict(zip(ids, wanted.values(), strict=True)))
    overlaps = {key: overlap_of(project, key) for key in wanted}
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
                *(pk, project.pk, task.prompt_id, round_number, str(Purpose.WORK), len(members)),
                *(overlaps[key], 0 if pk in withheld else overlaps[key], 0, 0.0, shuffled(), key, now),
            )
            for pk, (key, (task, members)) in zip(ids, wanted.items(), strict=True)
        ),
    )
    places = [
        (pk, member, index)
        for pk, (_, members) in zip(ids, wanted.values(), strict=True)
        for index, member in enumerate(members)
    ]
    candidate_ids = bulk.reserve_ids(Candidate, len(places))
    bulk.insert(
        Candidate,
        ["id", "comparison_id", "completion_id", "index"],
        ((pk, *place) for pk, place in zip(candidate_ids, places, strict=True)),
    )
    Withholding.objects.bulk_create(withheld.values())


def _withheld(tasks: dict[int, tuple[Task, list[int]]]) -> dict[int, Withholding]:
    """Comparison id → what is found there, where an answer names the model that wrote it."""
    found = {}
    for pk, (task, members) in tasks.items():
        texts = [(one.text, one.source or IMPORTED) for one in task.completions]
        naming = first_naming(texts, asked=partial(_asked, task.prompt_id))
        if naming is not None:
            index, place = naming
            found[pk] = Withholding(
                comparison_id=pk,
                completion_id=members[index],
                start=place.start,
                end=place.end,
                quote=place.quote,
            )
    return found


def _asked(prompt_id: int) -> str:
    return asked_in(Prompt.objects.only("messages", "context").get(pk=prompt_id))
