"""Completions and comparisons that come in with their prompts, many at a time."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from django.utils import timezone

from annotation.choices import FinishReason, Purpose, SourceKind
from annotation.exchange.formats.items import ImportedCompletion, ImportedItem
from annotation.models import Comparison, Completion, CompletionSource, Project, Prompt, Withholding, bulk
from annotation.selectors import access
from annotation.services.texts.comparisons import NewComparison, completion_set, write_comparisons
from annotation.services.texts.completions import overlap_of, write_steps
from annotation.services.texts.quarantine import asked_in, first_naming
from annotation.text.identity import text_hash

IMPORTED = "imported answers"
"""The source of answers of which the file does not say who wrote them."""

Placed = tuple[ImportedItem, int]
"""An item and the id of its prompt."""
_Key = tuple[int, int, str, int | None]
"""Prompt, source, hash of the text, seed: what makes two completions the same."""


def create_tasks(
    *, project: Project, tasks: Sequence[Placed], new_prompts: set[int], file_import: int | None = None
) -> int:
    """Write the answers and their comparisons, in the newest round; how many comparisons were new.

    Idempotent: an answer of the same source with the same text is the one that is there, and the
    same set of answers is compared once, in whatever round that was. `new_prompts` were written in
    this transaction: nothing needs to be looked up for them. Call it inside a transaction.
    """
    by_set: dict[str, tuple[Placed, list[int]]] = {}
    for task, ids in zip(tasks, store_completions(tasks, new_prompts), strict=True):
        by_set.setdefault(completion_set(ids), (task, ids))
    old = [key for key, ((_, prompt), _) in by_set.items() if prompt not in new_prompts]
    there = Comparison.objects.filter(project=project, completion_set__in=old, purpose=Purpose.WORK)
    for key in set(there.values_list("completion_set", flat=True)):
        del by_set[key]
    round_number = access.current_round(project)
    new: dict[int, NewComparison] = {}
    withheld = []
    for pk, (key, ((item, prompt), ids)) in zip(
        bulk.reserve_ids(Comparison, len(by_set)), by_set.items(), strict=True
    ):
        overlap = overlap_of(project, key)
        naming = _withheld(pk, item, prompt, ids)
        withheld += naming
        new[pk] = NewComparison(
            project_id=project.pk,
            prompt_id=prompt,
            completions=ids,
            round_number=round_number,
            overlap=overlap,
            open_slots=0 if naming else overlap,
            metadata=item.metadata,
            file_import_id=file_import,
        )
    write_comparisons(new)
    Withholding.objects.bulk_create(withheld)
    return len(by_set)


def store_completions(placed: Sequence[Placed], new_prompts: set[int]) -> list[list[int]]:
    """The ids of every item's completions; what is not there yet is written.

    A seed under which another text stands already is left out: one seed gives one text. A text whose
    seed the file does not tell is the one of the same source that is there, whatever its seed.
    """
    sources = _sources({imported.source or IMPORTED for item, _ in placed for imported in item.completions})
    known, seeds, texts = _stored({prompt for _, prompt in placed} - new_prompts)
    new: dict[_Key, ImportedCompletion] = {}
    keys = []
    for item, prompt in placed:
        of_item: list[_Key] = []
        for completion in item.completions:
            source, digest, seed = (
                sources[completion.source or IMPORTED],
                text_hash(completion.text),
                completion.seed,
            )
            if seed is not None and seeds.setdefault((prompt, source, seed), digest) != digest:
                seed = None
            of_item.append((prompt, source, digest, seed))
        of_item = [_stored_as(key, of_item, known, texts) for key in of_item]
        for key, completion in zip(of_item, item.completions, strict=True):
            if key not in known:
                new.setdefault(key, completion)
        keys.append(of_item)
    known |= dict(zip(new, bulk.reserve_ids(Completion, len(new)), strict=True))
    now = bulk.time_value(timezone.now())
    bulk.insert(
        Completion,
        [
            *("id", "prompt_id", "source_id", "text", "text_hash"),
            *("sampling", "seed", "finish_reason", "token_count", "created_at", "step_count"),
        ],
        (
            (
                *(
                    known[key],
                    key[0],
                    key[1],
                    imported.text,
                    key[2],
                    bulk.json_value(dict(imported.sampling)),
                ),
                *(key[3], str(FinishReason(imported.finish_reason)), None, now, len(imported.steps)),
            )
            for key, imported in new.items()
        ),
    )
    if traces := [(known[key], imported.steps) for key, imported in new.items() if imported.steps]:
        write_steps(traces)
    return [[known[key] for key in of_item] for of_item in keys]


def _stored_as(
    key: _Key, of_item: Sequence[_Key], known: Mapping[_Key, int], texts: Mapping[tuple[int, int, str], _Key]
) -> _Key:
    """The key of a text without a seed where it is there with one, and the item does not name that, too."""
    same = texts.get(key[:3], key)
    return same if key[3] is None and key not in known and same not in of_item else key


def _stored(
    prompts: set[int],
) -> tuple[dict[_Key, int], dict[tuple[int, int, int], str], dict[tuple[int, int, str], _Key]]:
    """Completions by key, the hash of the text under each seed, and the oldest key of each text."""
    known: dict[_Key, int] = {}
    seeds: dict[tuple[int, int, int], str] = {}
    texts: dict[tuple[int, int, str], _Key] = {}
    rows = Completion.objects.filter(prompt__in=prompts).values_list(
        "pk", "prompt_id", "source_id", "text_hash", "seed"
    )
    # The oldest of several wins.
    for pk, prompt, source, digest, seed in rows.order_by("-pk"):
        known[prompt, source, digest, seed] = pk
        texts[prompt, source, digest] = (prompt, source, digest, seed)
        if seed is not None:
            seeds[prompt, source, seed] = digest
    return known, seeds, texts


def _sources(names: Iterable[str]) -> dict[str, int]:
    unique_names = set(names)
    sources = dict(CompletionSource.objects.filter(name__in=unique_names).values_list("name", "pk"))
    for name in unique_names - sources.keys():
        source, _ = CompletionSource.objects.get_or_create(name=name, defaults={"kind": SourceKind.IMPORT})
        sources[name] = source.pk
    return sources


def _withheld(pk: int, item: ImportedItem, prompt: int, ids: Sequence[int]) -> list[Withholding]:
    """The finding in a comparison where an answer names the model that wrote it."""
    texts = [(completion.text, completion.source or IMPORTED) for completion in item.completions]
    naming = first_naming(texts, prompt_text=partial(_prompt_text, prompt))
    if naming is None:
        return []
    index, place = naming
    return [
        Withholding(
            comparison_id=pk, completion_id=ids[index], start=place.start, end=place.end, quote=place.quote
        )
    ]


def _prompt_text(prompt_id: int) -> str:
    return asked_in(Prompt.objects.only("messages", "context").get(pk=prompt_id))
