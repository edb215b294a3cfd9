"""Prompts come in from files."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from django.db import transaction
from django.utils import timezone

from annotation.choices import AcquisitionStrategy, Split
from annotation.errors import ImportErrors
from annotation.exchange.formats.fields import FieldError, row_error
from annotation.exchange.formats.items import ImportedItem
from annotation.exchange.formats.prompts_jsonl import parse_line
from annotation.exchange.ready_made import create_tasks
from annotation.models import Project, Prompt, User, bulk
from annotation.services import audit
from annotation.services.assignments.acquisition import score_open_comparisons
from annotation.services.texts.completions import assign_splits, find_or_add_prompt
from annotation.text.identity import content_hash, opening_hash

LISTED_ERRORS = 50
"""So many faults of a file are told at once; reading stops there."""

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
    return len(new), create_tasks(project=project, tasks=tasks, new_prompts=new) if tasks else 0


def _known(project: Project, digests: set[str]) -> dict[str, int]:
    """Content hash → id of those that the project has."""
    prompts = Prompt.objects.filter(project=project).values_list("content_hash", "pk")
    # Of few prompts all are read, which is quicker than to ask for each of a batch by name.
    few = list(prompts[: len(digests) + 1])
    if len(few) <= len(digests):
        return dict(few)
    return dict(prompts.filter(content_hash__in=digests))
