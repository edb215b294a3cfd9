"""Prompts come in from files."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from django.db import transaction
from django.utils import timezone

from annotation.choices import AcquisitionStrategy, FinishReason, Purpose, SourceKind, Split
from annotation.errors import ImportErrors
from annotation.exchange.formats.fields import FieldError, row_error
from annotation.exchange.formats.items import ImportedCompletion, ImportedItem
from annotation.exchange.formats.prompts_jsonl import parse_line
from annotation.models import (
    Comparison,
    Completion,
    CompletionSource,
    Project,
    Prompt,
    User,
    Withholding,
    bulk,
)
from annotation.selectors import access
from annotation.services import audit
from annotation.services.assignments.acquisition import score_open_comparisons
from annotation.services.texts import (
    NewComparison,
    asked_in,
    assign_splits,
    completion_set,
    find_or_add_prompt,
    first_naming,
    overlap_of,
    write_comparisons,
    write_steps,
)
from annotation.text.identity import content_hash, opening_hash, text_hash

LISTED_ERRORS = 50
"""Faults of a file that are reported; reading stops there."""

_BATCH = 2_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportReport:
    """Outcome of an import."""

    added: int
    already_there: int
    """Prompts that the project had, and repetitions within the file."""
    comparisons: int = 0
    """Comparisons added, of answers that came with their prompts."""


def import_prompts(*, project: Project, lines: Iterable[str], name: str) -> ImportReport:
    """Add the prompts of a JSONL file (see `annotation.exchange.formats.prompts_jsonl`) to a project.

    Answers that come with a prompt are put before annotators together, in the newest round.

    One transaction: with a single faulty line nothing is added and `ImportErrors` lists
    line, field and remedy of every fault, up to `LISTED_ERRORS`. A prompt with the same
    messages and context as one in the project counts as already there, so importing a file twice
    adds nothing; references and tags that it lacks are added to it. Lines are read as they
    come and held in batches. `name` is what errors call the file.
    """
    with bulk.writing_much(), transaction.atomic():
        # Two imports into one project take turns; what the first adds the second finds.
        Project.objects.select_for_update(no_key=True).get(pk=project.pk)
        added = already_there = comparisons = 0
        for batch in _batches(_parsed(lines, name)):
            new, put_up = _store(project, batch)
            added += new
            already_there += len(batch) - new
            comparisons += put_up
    if comparisons and project.acquisition != AcquisitionStrategy.AGE:
        score_open_comparisons(project=project)
    return ImportReport(added=added, already_there=already_there, comparisons=comparisons)


@transaction.atomic
def write_prompt(*, project: Project, actor: User, parsed: ImportedItem) -> tuple[Prompt, bool]:
    """Return the project's prompt with this content, and True where `actor` added it now."""
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)
    digest = content_hash(parsed.messages, parsed.context)
    is_new = not Prompt.objects.filter(project=project, content_hash=digest).exists()
    prompt = find_or_add_prompt(
        project=project,
        messages=parsed.messages,
        context=parsed.context,
        references=parsed.references,
        tags=parsed.tags,
    )
    if is_new:
        audit.record(
            action="data.prompt",
            subject=project,
            actor=actor,
            project=project,
            details={"prompt": prompt.pk},
        )
    return prompt, is_new


def _parsed(lines: Iterable[str], name: str) -> Iterator[ImportedItem]:
    """Give prompts until the first fault; from there on only collect faults, and raise them at the end."""
    errors: list[str] = []
    for number, line in enumerate(lines, start=1):
        if len(errors) == LISTED_ERRORS:
            raise ImportErrors(name, errors, more=True)
        try:
            parsed = parse_line(line.removeprefix("\ufeff") if number == 1 else line)
        except FieldError as error:
            errors.append(row_error(number, error))
            continue
        if parsed is not None and not errors:
            yield parsed
    if errors:
        raise ImportErrors(name, errors)


def _batches(prompts: Iterator[ImportedItem]) -> Iterator[list[ImportedItem]]:
    batch: list[ImportedItem] = []
    for prompt in prompts:
        batch.append(prompt)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def add_prompts(
    *, project: Project, prompts: Sequence[ImportedItem], file_import: int | None = None
) -> tuple[list[int], set[int]]:
    """The ids of these prompts, in order, and which of them are new. Call it inside a transaction.

    A prompt with the same messages and context as one in the project, or as one before it, is that one; what
    it lacks of references and tags it gets. file_import: the id of the import that brings them.
    The project is locked before anything is looked up in it: of two who add one prompt one finds it.
    """
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)
    digests = [content_hash(parsed.messages, parsed.context) for parsed in prompts]
    known = _known(project, set(digests))
    new = _together(prompts, digests, known)
    openings = {digest: opening_hash(parsed.messages, parsed.context) for digest, parsed in new.items()}
    stated = {digest: Split(parsed.split) for digest, parsed in new.items() if parsed.split}
    splits = assign_splits(project=project, openings=openings, stated=stated)
    ids = dict(zip(new, bulk.reserve_ids(Prompt, len(new)), strict=True))
    now = bulk.time_value(timezone.now())
    bulk.insert(
        Prompt,
        [
            *("id", "project_id", "messages", "context", "references", "tags"),
            *("content_hash", "split", "created_at", "metadata", "file_import_id"),
        ],
        (
            (
                *(ids[digest], project.pk, bulk.json_value(parsed.messages), bulk.json_value(parsed.context)),
                *(bulk.json_value(parsed.references), bulk.json_value(parsed.tags)),
                *(digest, str(splits[digest]), now),
                # What came with answers stands with their comparison.
                bulk.json_value(dict(parsed.metadata))
                if parsed.metadata and not parsed.completions
                else None,
                file_import,
            )
            for digest, parsed in new.items()
        ),
    )
    _add_references(prompts, digests, known)
    return [known.get(digest) or ids[digest] for digest in digests], set(ids.values())


def _together(
    prompts: Sequence[ImportedItem], digests: Sequence[str], known: Collection[str]
) -> dict[str, ImportedItem]:
    """The new prompts by digest: the first of several with the same content, with the references of all."""
    new: dict[str, ImportedItem] = {}
    for digest, parsed in zip(digests, prompts, strict=True):
        first = new.get(digest)
        if digest in known:
            continue
        if first is None:
            new[digest] = parsed
        elif more := _lacking(parsed, first.references, first.tags):
            references, tags = more
            new[digest] = replace(
                first, references=[*first.references, *references], tags=[*first.tags, *tags]
            )
    return new


def _lacking(
    parsed: ImportedItem, references: Sequence[str], tags: Sequence[str]
) -> tuple[list[str], list[str]] | None:
    """The references and tags of a prompt that are not among these; None without any."""
    more = [text for text in parsed.references if text not in references]
    more_tags = [tag for tag in parsed.tags if tag not in tags]
    return (more, more_tags) if more or more_tags else None


def _add_references(
    prompts: Sequence[ImportedItem], digests: Sequence[str], known: Mapping[str, int]
) -> None:
    """Give prompts that are there the references and tags that they lack."""
    there = {
        known[digest]: parsed
        for digest, parsed in zip(digests, prompts, strict=True)
        if digest in known and (parsed.references or parsed.tags)
    }
    if not there:
        return
    rows = {prompt.pk: prompt for prompt in Prompt.objects.filter(pk__in=there).only("references", "tags")}
    changed: dict[int, Prompt] = {}
    for digest, parsed in zip(digests, prompts, strict=True):
        prompt = rows.get(known.get(digest, 0))
        if prompt is not None and (more := _lacking(parsed, prompt.references, prompt.tags)):
            prompt.references, prompt.tags = [*prompt.references, *more[0]], [*prompt.tags, *more[1]]
            changed[prompt.pk] = prompt
    Prompt.objects.bulk_update(changed.values(), ["references", "tags"], batch_size=500)


def _store(project: Project, batch: list[ImportedItem]) -> tuple[int, int]:
    """Write what is new of a batch; how many prompts and how many comparisons were."""
    ids, new = add_prompts(project=project, prompts=batch)
    tasks = [(parsed, pk) for pk, parsed in zip(ids, batch, strict=True) if parsed.completions]
    return len(new), create_tasks(project=project, tasks=tasks, new_prompts=new)[0] if tasks else 0


def _known(project: Project, digests: set[str]) -> dict[str, int]:
    """Content hash → id of those that the project has. A deleted one comes back."""
    deleted = Prompt.with_deleted.filter(project=project, deleted_at__isnull=False)
    deleted.filter(content_hash__in=digests).update(deleted_at=None)
    prompts = Prompt.objects.filter(project=project).values_list("content_hash", "pk")
    # Of few prompts all are read, which is quicker than to ask for each of a batch by name.
    few = list(prompts[: len(digests) + 1])
    if len(few) <= len(digests):
        return dict(few)
    return dict(prompts.filter(content_hash__in=digests))


# Completions and comparisons that come in with their prompts, many at a time.

IMPORTED = "imported answers"
"""The source of answers of which the file does not say who wrote them."""

Placed = tuple[ImportedItem, int]
"""An item and the id of its prompt."""
_Key = tuple[int, int, str, int | None]
"""Prompt, source, hash of the text, seed: what makes two completions the same."""


def create_tasks(
    *, project: Project, tasks: Sequence[Placed], new_prompts: set[int], file_import: int | None = None
) -> tuple[int, int]:
    """Write the answers and their comparisons, in the newest round; how many comparisons were new.

    And how many items say otherwise in their metadata than a comparison that is there: it keeps what it has.

    Idempotent: an answer of the same source with the same text is the one that is there, and the
    same set of answers is compared once, in whatever round that was. `new_prompts` were written in
    this transaction: nothing needs to be looked up for them. Call it inside a transaction.
    """
    by_set: dict[str, tuple[Placed, list[int]]] = {}
    repeated: list[tuple[str, Mapping[str, Any]]] = []
    for task, ids in zip(tasks, store_completions(tasks, new_prompts), strict=True):
        key = completion_set(ids)
        if by_set.setdefault(key, (task, ids))[0] is not task:
            repeated.append((key, task[0].metadata))
    old = [key for key, ((_, prompt), _) in by_set.items() if prompt not in new_prompts]
    there = Comparison.objects.filter(project=project, completion_set__in=old, purpose=Purpose.WORK)
    known_sets = dict(there.order_by("-pk").values_list("completion_set", "pk"))
    for key in known_sets:
        repeated.append((key, by_set.pop(key)[0][0].metadata))
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
    ids_of_sets = {**known_sets, **dict(zip(by_set, new, strict=True))}
    differing = add_metadata(Comparison, [(ids_of_sets[key], metadata) for key, metadata in repeated])
    return len(by_set), differing


def add_metadata(
    model: type[Prompt] | type[Comparison] | type[Completion], rows: Sequence[tuple[int, Mapping[str, Any]]]
) -> int:
    """Give rows that are there the names of metadata that they lack; return how many items say otherwise.

    rows: id and metadata of each item; the first one counts. What a row has stays.
    """
    named = [(pk, metadata) for pk, metadata in rows if metadata]
    if not named:
        return 0
    there = model._default_manager.filter(pk__in={pk for pk, _metadata in named})
    stored = {pk: metadata or {} for pk, metadata in there.values_list("pk", "metadata")}
    changed: dict[int, dict[str, Any]] = {}
    differing = 0
    for pk, metadata in named:
        has = changed.get(pk, stored[pk])
        differing += any(name in has and has[name] != value for name, value in metadata.items())
        if not metadata.keys() <= has.keys():
            changed[pk] = {**metadata, **has}
    bulk.update(model, "metadata", [(pk, bulk.json_value(metadata)) for pk, metadata in changed.items()])
    return differing


def store_completions(placed: Sequence[Placed], new_prompts: set[int]) -> list[list[int]]:
    """The ids of every item's completions; what is not there yet is written.

    A seed under which another text stands already is left out: one seed gives one text. A text whose
    seed the file does not tell is the one of the same source that is there, whatever its seed. One that is
    there keeps its metadata, and gets the names that it lacks.
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
    add_metadata(
        Completion,
        [
            (known[key], completion.metadata)
            for of_item, (item, _prompt) in zip(keys, placed, strict=True)
            for key, completion in zip(of_item, item.completions, strict=True)
        ],
    )
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
