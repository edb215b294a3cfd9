"""Files come into a project: looked through whole, then written in batches, and gone on with after a cut."""

import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import (
    AcquisitionStrategy,
    CategoryScope,
    Granularity,
    ImportState,
    JobState,
    Polarity,
    RatingScale,
)
from annotation.errors import ImportErrors, Refusal
from annotation.exchange.formats.columns import LEAVE_OUT, Profile, renamed
from annotation.exchange.formats.fields import FieldError, row_error
from annotation.exchange.formats.items import ImportedItem, NewCategory, Row, checked
from annotation.exchange.formats.plans import Parts, Plan, Stated, require_answers, resolved
from annotation.exchange.formats.registry import READERS, plan_for
from annotation.exchange.formats.rows import NumberedRow, data_files, read_rows
from annotation.exchange.formats.tables import answers_of
from annotation.exchange.formats.trl import CORRECT_STEP
from annotation.exchange.item_imports import (
    BATCH,
    ImportScene,
    ItemCounts,
    ItemImport,
    Numbered,
    Occurrences,
    QuestionsInProject,
)
from annotation.models import Category, Criterion, FileImport, Project, User, bulk
from annotation.services.assignments.acquisition import score_open_comparisons
from annotation.services.jobs import release, worker_name, write

# The categories and criteria that a file names: found in the project, or made with it.

MOST_NAMES = 200


@dataclass(slots=True)
class NamesInFile:
    """Categories with their scope and their highest severity, and criteria with their scale, of a file."""

    categories: dict[str, tuple[CategoryScope, int]] = field(default_factory=dict)
    criteria: dict[str, str] = field(default_factory=dict)

    def add(self, item: ImportedItem) -> None:
        """Take note of an item's. Refuses a file that uses one name for two things."""
        for judgment in item.judgments:
            for span in judgment.spans:
                self._category(span.category, CategoryScope.SPAN, span.severity or 0)
            for missing in judgment.missing:
                self._category(missing.category, CategoryScope.MISSING, 0)
            for rating in judgment.ratings:
                scale = self.criteria.setdefault(rating.criterion, rating.scale)
                if scale != rating.scale:
                    # Five steps are among seven, where a format does not say which it has.
                    if {scale, rating.scale} != {RatingScale.FIVE, RatingScale.SEVEN}:
                        raise Refusal(
                            "criterion_has_two_scales",
                            _(
                                "The file rates %(criterion)r on two scales, %(scale)s and "
                                "%(other)s. Give them two names."
                            ),
                            field="ratings",
                            criterion=rating.criterion,
                            scale=scale,
                            other=rating.scale,
                        )
                    self.criteria[rating.criterion] = RatingScale.SEVEN
        if len(self.categories) > MOST_NAMES or len(self.criteria) > MOST_NAMES:
            raise Refusal(
                "too_many_names",
                _(
                    "The file names more than %(most)s categories or criteria; a column of texts "
                    "was taken for one of labels. Correct the mapping."
                ),
                field="map",
                most=MOST_NAMES,
            )

    def _category(self, key: str, scope: CategoryScope, severity: int) -> None:
        known, steps = self.categories.get(key, (scope, 0))
        if known != scope:
            raise Refusal(
                "category_has_two_scopes",
                _(
                    "The file uses the category %(key)r for marks and for what is missing. Give "
                    "them two names."
                ),
                field="category",
                key=key,
            )
        self.categories[key] = (scope, max(steps, severity))


def scene_for(
    *, project: Project, names: NamesInFile, defined: Sequence[NewCategory] = ()
) -> tuple[ImportScene, dict[str, list[int]]]:
    """The project with all categories and criteria that a file names, and the ids of those that were made.

    defined: the categories that the format itself defines, which are made in any case.

    Refuses one that the project uses for something else, before anything is written.
    """
    categories = {category.key: category for category in project.categories.all()}
    known = set(categories)
    used_categories = {new.key: (new.scope, 0) for new in defined} | names.categories
    for key, (scope, steps) in used_categories.items():
        category = categories.get(key)
        if category is not None and (category.scope != scope or category.severity_steps < steps):
            raise Refusal(
                "category_differs",
                _(
                    "The category %(key)r differs: in %(project)s its scope is “%(scope)s”, with "
                    "%(steps_here)s steps of severity; in the file it is “%(scope_there)s”, with %(steps)s. "
                    "Import into another project."
                ),
                field="category",
                key=key,
                project=project,
                scope=category.get_scope_display(),
                steps_here=category.severity_steps,
                scope_there=scope.label,
                steps=steps,
            )
    criteria = {criterion.key: criterion for criterion in project.criteria.all()}
    for key, scale in names.criteria.items():
        criterion = criteria.get(key)
        if criterion is None:
            continue
        fits = scale in (criterion.scale, RatingScale.FIVE)
        if not fits or criterion.scale == RatingScale.THUMBS != scale:
            raise Refusal(
                "criterion_scale_differs",
                _(
                    "The scale of %(key)r differs: it is “%(scale)s” in %(project)s and “%(scale_there)s” "
                    "in the file. Import into another project."
                ),
                field="ratings",
                project=project,
                key=key,
                scale=RatingScale(criterion.scale).label,
                scale_there=RatingScale(scale).label,
            )
    known_criteria = set(criteria)
    for new in defined:
        if new.key not in categories:
            categories[new.key] = Category.objects.create(
                project=project, position=project.categories.count() + 1, **asdict(new)
            )
    for key in [key for key in names.categories if key not in categories]:
        categories[key] = _category(project, key, *names.categories[key])
    for key in [key for key in names.criteria if key not in criteria]:
        criteria[key] = Criterion.objects.create(
            project=project, key=key, label=_label(key), scale=names.criteria[key], position=len(criteria) + 1
        )
    scene = ImportScene(
        project=project,
        categories={key: category.pk for key, category in categories.items()},
        criteria={key: criterion.pk for key, criterion in criteria.items()},
        questions=QuestionsInProject.of(project),
    )
    return scene, {
        "categories": [category.pk for key, category in categories.items() if key not in known],
        "criteria": [criterion.pk for key, criterion in criteria.items() if key not in known_criteria],
    }


def _category(project: Project, key: str, scope: CategoryScope, steps: int) -> Category:
    missing = scope == CategoryScope.MISSING
    return Category.objects.create(
        project=project,
        key=key,
        label=_label(key),
        scope=scope,
        granularity=Granularity.WHOLE if missing else Granularity.SENTENCE,
        polarity=Polarity.MERIT if key == CORRECT_STEP else Polarity.ERROR,
        severity_steps=steps,
        position=project.categories.count() + 1,
    )


def _label(key: str) -> str:
    return key.replace("-", " ").replace("_", " ").strip().capitalize()[:80]


LISTED_ERRORS = 50
"""Bad rows that are reported when a file is refused; reading stops there."""
KEPT_ERRORS = 1_000
"""So many rows that were left out are kept with the import; all are counted."""
_READ_AT_ONCE = 1024**2
_MISSHAPEN = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)
"""Raised by a reader that meets a list where a text belongs, and the like."""
_METADATA = "\x00metadata"
"""Under this name, which no file has, a row carries its metadata past its reader."""
logger = logging.getLogger(__name__)


OnProgress = Callable[[int, int], None]
"""Called now and then with rows done and rows in all."""
OnError = Callable[[int, FieldError], None]


def import_file(
    *,
    project: Project,
    path: Path,
    name: str = "",
    format_name: str = "",
    mapping: Stated | None = None,
    leave_out: Sequence[str] = (),
    meanings: Mapping[str, str] | None = None,
    skip_bad: bool = False,
    created_by: User | None = None,
    split: str = "",
    unpack: bool = True,
    on_progress: OnProgress | None = None,
) -> FileImport:
    """Bring a file, or a folder of a data set, into a project.

    A file with a column that may be a verdict, and that nobody has placed, is refused: see `formats.plans`.
    mapping, leave_out, meanings: what a person says of its columns and of the values of the winner.

    The file is looked through whole before anything is written: with one bad row it is refused
    (`ImportErrors`: row, field and remedy of each, up to `LISTED_ERRORS`), unless `skip_bad`, which lists bad
    rows and leaves them out. Then batches are written, each in its own transaction; memory stays the same
    however long the file is. One that was cut off goes on where it stopped, and the same file twice adds
    nothing. A judgment that contradicts one of the same person's on the same answers is left out and listed.
    """
    record = record_for(
        project=project, path=path, name=name or path.name, created_by=created_by, split=split
    )
    plan = plan_of(
        path,
        name=record.name,
        format_name=format_name,
        mapping=mapping,
        leave_out=leave_out,
        meanings=meanings,
        split=split,
        unpack=unpack,
    )
    require_answers(plan.questions)
    wanted = {**plan_values(plan, leave_out), "skip_bad": skip_bad}
    carry_on = record.state in (ImportState.RUNNING, ImportState.FAILED) and all(
        getattr(record, name) == value for name, value in wanted.items()
    )
    if not carry_on:
        record.rows_done, record.counts = 0, {}
    for name, value in wanted.items():
        setattr(record, name, value)
    record.state, record.worker, record.heartbeat_at = ImportState.RUNNING, worker_name(), timezone.now()
    record.errors, record.errors_total = [], 0
    record.save()
    try:
        import_rows(record, path, split=split, unpack=unpack, on_progress=on_progress, plan=plan)
    except Refusal as refusal:
        text = "" if isinstance(refusal, ImportErrors) else refusal.message
        release(record, **record.end_values(JobState.FAILED, text))
        raise
    release(record, **record.end_values(JobState.FINISHED, ""))
    record.refresh_from_db()
    return record


def import_rows(
    record: FileImport,
    path: Path,
    *,
    split: str = "",
    unpack: bool = True,
    on_progress: OnProgress | None = None,
    plan: Plan | None = None,
) -> None:
    """Look a file through and write it, as its record says. The caller holds the claim on the record.

    plan: what `plan_of` gives for the record, where the caller has it.
    """
    try:
        plan = plan or plan_of(
            path,
            name=record.name,
            format_name=record.format,
            mapping=record.mapping,
            leave_out=record.leave_out,
            meanings=record.meanings,
            split=split,
            unpack=unpack,
        )
        require_answers(plan.questions)
        _Run(record, plan, lambda: read_rows(path, unpack=unpack, split=split), on_progress).go()
    except ImportErrors as refusal:
        record.errors = refusal.errors
        raise


def record_for(
    *, project: Project, path: Path, name: str, created_by: User | None = None, split: str = ""
) -> FileImport:
    """The record of this content in this project; a new one where it has never come before."""
    digest, size = digest_of(path, split)
    record, _created = FileImport.objects.get_or_create(
        project=project,
        digest=digest,
        defaults={"name": name[-255:], "size": size, "created_by": created_by},
    )
    return record


def digest_of(path: Path, split: str = "") -> tuple[str, int]:
    """SHA-256 of a file, or of all files of a folder with their names, and the size in bytes."""
    digest, size = hashlib.sha256(split.encode()), 0
    for file in data_files(path) if path.is_dir() else [path]:
        if file != path:
            digest.update(str(file.relative_to(path)).encode("utf-8", "surrogateescape"))
        with file.open("rb") as stream:
            while part := stream.read(_READ_AT_ONCE):
                digest.update(part)
                size += len(part)
    return digest.hexdigest(), size


def plan_of(
    path: Path,
    *,
    name: str = "",
    format_name: str = "",
    mapping: Stated | None = None,
    leave_out: Sequence[str] = (),
    meanings: Mapping[str, str] | None = None,
    split: str = "",
    unpack: bool = True,
) -> Plan:
    """Return the plan for reading a file, from all of its rows and from a person's choices.

    name: under which messages speak of the file; an upload is stored under another one. Refuses a file
    without a good row, with what is wrong with its rows (`ImportErrors`).
    """
    profile = _profile(path, name=name or path.name, split=split, unpack=unpack)
    choices: dict[str, Any] = {"mapping": mapping, "leave_out": leave_out, "meanings": meanings}
    reader = READERS.get(format_name) or plan_for(profile, mapping=mapping, meanings=meanings).reader
    if reader.survey is None:
        return plan_for(profile, name=format_name, **choices)
    columns = resolved(mapping or {}, [], profile)
    parts = Parts()
    for _number, row in read_rows(path, unpack=unpack, split=split):
        if isinstance(row, FieldError):
            continue
        try:
            for part in reader.survey(renamed(row, columns)):
                parts.add(part)
        except _MISSHAPEN:
            # Its reading raises the same error, which then names the row.
            continue
    return plan_for(profile, name=reader.name, parts=parts, **choices)


def plan_values(plan: Plan, leave_out: Sequence[str]) -> dict[str, Any]:
    """Return the fields of an import that say how it is read."""
    return {
        "format": plan.reader.name,
        "mapping": {role: names for role, names in plan.mapping.items() if role != LEAVE_OUT},
        "leave_out": list(dict.fromkeys([*plan.roles.named(LEAVE_OUT), *leave_out])),
        "meanings": dict(plan.meanings),
        # As the database gives it back: an import that was cut off goes on where all of this is the same.
        "account": [
            {**asdict(column), "values": [list(value) for value in column.values]} for column in plan.account
        ],
    }


def _profile(path: Path, *, name: str, split: str, unpack: bool) -> Profile:
    """Count the columns of a file. Raises `ImportErrors` where all rows are bad; an empty file has none."""
    profile = Profile()
    errors: list[str] = []
    more = False
    for number, row in read_rows(path, unpack=unpack, split=split):
        if not isinstance(row, FieldError):
            profile.add(row)
        elif len(errors) < LISTED_ERRORS:
            errors.append(row_error(number, row))
        else:
            more = True
    if errors and not profile.rows:
        raise ImportErrors(name, errors, more=more)
    return profile


def items_of(rows: Iterator[NumberedRow], plan: Plan, on_error: OnError) -> Iterator[Numbered]:
    """The items of a file's rows, checked; a wrong row is reported and left out."""

    is_grouped = plan.reader.group is not None

    def good() -> Iterator[tuple[int, Row]]:
        for number, row in rows:
            if isinstance(row, FieldError):
                on_error(number, row)
                continue
            try:
                values, metadata = plan.prepare(row)
            except FieldError as error:
                on_error(number, _in_their_names(error, plan))
                continue
            yield number, {**values, _METADATA: metadata} if metadata else values

    together = plan.reader.group(good()) if plan.reader.group else good()
    for number, row in together:
        metadata = _metadata_of(row, is_grouped)
        if _METADATA in row:
            row = {name: value for name, value in row.items() if name != _METADATA}
        try:
            items = _read(row, plan)
        except FieldError as error:
            on_error(number, _in_their_names(error, plan))
            continue
        for item in items:
            yield number, _with_metadata(item, metadata, _answer_names(plan, row)) if metadata else item


def _answer_names(plan: Plan, row: Row) -> Sequence[str]:
    """Return the columns of the answers, as the file calls them, in the order of the answers."""
    if plan.roles.answers or not plan.reader.inner or not isinstance(row.get(plan.reader.inner), dict):
        return plan.roles.answers
    return [name for name, _text in answers_of(row[plan.reader.inner])]


def _with_metadata(item: ImportedItem, metadata: Mapping[str, Any], answers: Sequence[str]) -> ImportedItem:
    """Return the item with the metadata of its row. A column whose name begins or ends with that of an
    answer belongs to the answer: `response_a_length` is its `length`."""
    # With several columns an empty one is no answer, and places would say nothing.
    names = tuple(answers) if len(answers) == len(item.completions) else ()
    of_item, of_answers = dict(metadata), [dict[str, Any]() for _ in names]
    for column in metadata:
        if found := _answer_of_column(column, names):
            place, name = found
            of_answers[place][name] = of_item.pop(column)
    completions = tuple(
        replace(completion, metadata={**of_answer, **completion.metadata}) if of_answer else completion
        for completion, of_answer in zip(item.completions, of_answers, strict=False)
    )
    return replace(
        item, metadata={**of_item, **item.metadata}, completions=completions if names else item.completions
    )


@lru_cache(maxsize=1_000)
def _answer_of_column(column: str, names: tuple[str, ...]) -> tuple[int, str] | None:
    """Return the place of the answer that a column belongs to, and the column's name there; None for none.

    The rows of a file have the same columns, so each is looked at once.
    """
    for place in sorted(range(len(names)), key=lambda place: -len(names[place])):
        name = re.escape(names[place])
        if match := re.fullmatch(rf"{name}[_.\- ]+(.+)|(.+)[_.\- ]+{name}", column):
            return place, match[1] or match[2]
    return None


def _metadata_of(row: Row, is_grouped: bool) -> dict[str, Any]:
    """The metadata of a row; of rows that are read together, what the first of them has goes first."""
    members = row.get("rows", row.get("traces")) if is_grouped else None
    metadata = dict(row.get(_METADATA, {}))
    for member in members if isinstance(members, list) else ():
        metadata = {**member.get(_METADATA, {}), **metadata}
    return metadata


def _in_their_names(error: FieldError, plan: Plan) -> FieldError:
    """The error with the field as the file calls it."""
    theirs = plan.theirs(error.field)
    if theirs == error.field or error.field is None:
        return error
    return FieldError(error.code, error.message, field=theirs)


def _read(row: Row, plan: Plan) -> list[ImportedItem]:
    """The checked items of a row. Raises `FieldError`, also for a value of a type that no reader expects."""
    try:
        return [checked(item) for item in plan.reader.read(row)]
    except FieldError:
        raise
    except _MISSHAPEN as error:
        logger.warning("A row made the reader %s fail", plan.reader.name, exc_info=error)
        raise FieldError(
            "row_misshapen",
            _(
                "The row does not have the shape of the format %(format)s (%(error)s). Correct the row, or "
                "choose another format."
            ),
            format=plan.reader.name,
            error=error,
        ) from None


class _Run:
    """One try to bring a file in."""

    def __init__(
        self,
        record: FileImport,
        plan: Plan,
        rows: Callable[[], Iterator[NumberedRow]],
        on_progress: OnProgress | None,
    ) -> None:
        self._record = record
        self._plan = plan
        self._rows = rows
        self._on_progress = on_progress or (lambda done, total: None)
        self._counts = {**asdict(ItemCounts()), **record.counts}
        self._counts["left_out"] = 0

    def go(self) -> None:
        names = self._look_through()
        scene, made = scene_for(
            project=self._record.project, names=names, defined=self._plan.reader.categories
        )
        for kind, ids in made.items():
            self._record.made[kind] = [*self._record.made.get(kind, []), *ids]
        self._record.rows_done = min(self._record.rows_done, self._record.rows_total)
        self._save()
        with bulk.writing_much(), Occurrences() as occurrences:
            self._write(
                ItemImport(
                    scene=scene,
                    format_name=self._record.format,
                    occurrences=occurrences,
                    file_import=self._record.pk,
                )
            )
        if self._counts["waiting"] and scene.project.acquisition != AcquisitionStrategy.AGE:
            score_open_comparisons(project=scene.project)
        self._record.rows_done = self._record.rows_total
        self._save()

    def _look_through(self) -> NamesInFile:
        names, total = NamesInFile(), 0
        questions = QuestionsInProject.of(self._record.project)
        errors: list[str] = []

        def wrong(number: int, error: FieldError) -> None:
            self._note(row_error(number, error))
            if not self._record.skip_bad:
                errors.append(self._record.errors[-1])
                if len(errors) == LISTED_ERRORS:
                    raise ImportErrors(self._record.name, errors, more=True)

        def counted() -> Iterator[NumberedRow]:
            nonlocal total
            for number, row in self._rows():
                total = number
                if number % BATCH == 0:
                    self._record.rows_total = number
                    self._save()
                yield number, row

        for number, item in items_of(counted(), self._plan, wrong):
            try:
                questions.fitted(item)
            except FieldError as error:
                wrong(number, error)
                continue
            names.add(item)
        self._record.rows_total = total
        if errors:
            raise ImportErrors(self._record.name, errors)
        return names

    def _write(self, writer: ItemImport) -> None:
        items = self._fitting(items_of(self._rows(), self._plan, lambda number, error: None))
        done = self._record.rows_done
        batch: list[Numbered] = []
        for number, item in items:
            if number <= done:
                writer.skip([(number, item)])
                continue
            # A row is never cut in two: it is done, or it is not.
            if len(batch) >= BATCH and number != batch[-1][0]:
                self._flush(writer, batch)
                batch = []
            batch.append((number, item))
        if batch:
            self._flush(writer, batch)

    def _fitting(self, items: Iterator[Numbered]) -> Iterator[Numbered]:
        """Leave out the items whose answers do not fit the project: they are listed already."""
        questions = QuestionsInProject.of(self._record.project)
        for number, item in items:
            try:
                yield number, questions.fitted(item)
            except FieldError:
                continue

    def _flush(self, writer: ItemImport, batch: list[Numbered]) -> None:
        counts = asdict(writer.write(batch))
        for reason in counts.pop("left_out"):
            self._counts["left_out"] += 1
            self._note(reason)
        for name, value in counts.items():
            self._counts[name] += value
        self._record.rows_done = batch[-1][0]
        self._save()
        self._on_progress(self._record.rows_done, self._record.rows_total)

    def _note(self, error: str) -> None:
        self._record.errors_total += 1
        if len(self._record.errors) < KEPT_ERRORS:
            self._record.errors.append(error)

    def _save(self) -> None:
        record = self._record
        record.counts = self._counts
        names = ("rows_total", "rows_done", "counts", "errors", "errors_total", "made")
        write(record, **{name: getattr(record, name) for name in names})
