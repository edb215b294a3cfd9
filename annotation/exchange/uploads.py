"""Uploaded files of imports: kept, measured, read once, and gone."""

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.db import models, transaction
from django.db.models import Count, F, ProtectedError, Q, QuerySet
from django.db.models.fields.reverse_related import ForeignObjectRel
from django.db.models.functions import Greatest
from django.utils import timezone
from django.utils.formats import number_format
from django.utils.functional import Promise
from django.utils.module_loading import import_string
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from annotation.choices import AssignmentState, ImportState, Purpose, SourceKind, TaskName
from annotation.errors import ImportErrors, Refusal
from annotation.exchange.file_imports import (
    LISTED_ERRORS,
    import_rows,
    items_of,
    plan_of,
    plan_values,
    record_for,
)
from annotation.exchange.formats.fields import FieldError, row_error
from annotation.exchange.formats.plans import ColumnAccount, Plan, Stated, require_answers
from annotation.exchange.formats.rows import read_rows
from annotation.models import (
    Assignment,
    AuditEntry,
    Category,
    Comparison,
    Completion,
    ConversationTurn,
    Criterion,
    FileImport,
    Judgment,
    Project,
    Prompt,
    User,
)
from annotation.selectors import access
from annotation.services import audit, jobs
from annotation.services.bulk import delete_comparisons, delete_prompts
from annotation.services.job_runs import refuse_without_room, run_job
from annotation.services.jobs import Heartbeat
from annotation.services.projects.templates import create_from_template

# An uploaded file before its import: its first rows, their faults, and the account of its columns.

SHOWN_ROWS = 5
CHECKED_ROWS = 500
"""Rows that a preview checks as the import would: a page that opens at once reads no more."""
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """The beginning of a file, and the account of all of it."""

    account: tuple[ColumnAccount, ...]
    rows: list[Mapping[str, str]]
    """The first rows, by the file's own names; each value cut off where it is long."""
    faults: list[str]
    """Rows among the first `CHECKED_ROWS` that the import would refuse: row, field and remedy of each."""
    checked_rows: int
    """Number of rows checked; the import checks all of them."""

    @property
    def columns(self) -> list[str]:
        """The columns of the file, by its own names."""
        return [column.name for column in self.account]

    @property
    def rows_by_role(self) -> list[dict[str, str]]:
        """The first rows, by the roles of their columns."""
        roles = {column.name: column.role for column in self.account}
        return [{roles.get(name) or name: value for name, value in row.items()} for row in self.rows]


def preview_values(path: Path, plan: Plan) -> dict[str, Any]:
    """Read the beginning of a file by its plan: what `FileImport.preview` keeps."""
    faults: list[str] = []
    rows = list(islice(read_rows(path, unpack=False), CHECKED_ROWS))

    def note(number: int, error: FieldError) -> None:
        if len(faults) < LISTED_ERRORS:
            faults.append(row_error(number, error))

    deque(items_of(iter(rows), plan, note), maxlen=0)
    good = [row for _, row in rows if not isinstance(row, FieldError)]
    shown = [
        {name: str(value)[:_SHOWN_CHARACTERS] for name, value in row.items()} for row in good[:SHOWN_ROWS]
    ]
    return {"rows": shown, "faults": faults, "checked_rows": len(rows)}


def preview_of(record: FileImport) -> Preview | None:
    """Return the preview of an uploaded file; None where it is gone, or being imported."""
    if not record.stored_as or record.is_busy or not record.preview:
        return None
    return Preview(account=accounts_of(record.account), **record.preview)


def accounts_of(stored: Iterable[Mapping[str, Any]]) -> tuple[ColumnAccount, ...]:
    """Return the accounts of columns that an import keeps."""
    return tuple(
        ColumnAccount(**{**values, "values": tuple(tuple(value) for value in values["values"])})
        for values in stored
    )


UPLOAD = "import.upload"
MOST_KEPT = 50
"""Files of one project that were uploaded and not imported."""


def count_upload(*, project: Project, user: User, size: int) -> None:
    """Write an upload down; of many at once exactly as many pass as may. Refuses the others."""
    most = settings.RONDO_UPLOADS_PER_MINUTE
    with transaction.atomic():
        # Whoever uploads many files at once waits here for themselves.
        User.objects.select_for_update().get(pk=user.pk)
        since = timezone.now() - timedelta(minutes=1)
        lately = AuditEntry.objects.filter(action=UPLOAD, actor=user, created_at__gt=since)
        if lately.count() >= most:
            raise Refusal(
                "too_many_uploads",
                _("You may upload %(most)s files a minute. Wait a moment, then upload this one again."),
                field="file",
                most=number_format(most),
            )
        imports = project.file_imports.filter(state__in=(ImportState.UPLOADED, ImportState.FAILED))
        if imports.exclude(stored_as="").count() >= MOST_KEPT:
            raise Refusal(
                "too_many_waiting_files",
                _("%(most)s files wait here to be imported. Import some of them or delete them."),
                field="file",
                most=number_format(MOST_KEPT),
            )
        audit.record(action=UPLOAD, subject=project, actor=user, project=project, details={"bytes": size})


class UploadedFiles:
    """In a folder that web processes and workers have in common: there is nothing to do.

    Files that lie elsewhere may be `Unavailable` for a while.
    """

    def keep(self, path: Path) -> None:
        """A file was received whole: have it where workers find it."""

    def here(self, path: Path) -> Path:
        """The file on this machine."""
        return path

    def remove(self, path: Path) -> None:
        """The file is not needed any more."""
        path.unlink(missing_ok=True)


def uploaded_files() -> UploadedFiles:
    """Return the store that the settings name: `annotation` knows none."""
    made: UploadedFiles = import_string(settings.RONDO_UPLOADED_FILES)()
    return made


BUSY = (ImportState.WAITING, ImportState.RUNNING, ImportState.UNDOING)


def receive_upload(*, project: Project, upload: "UploadedFile[Any]", user: User) -> FileImport:
    """Keep an uploaded file, and guess what it is. Nothing is imported yet.

    Refuses where the disk is nearly full, one that is too large or compressed, one that cannot be read, one
    that is being imported, and more than one person may upload or a project may keep.
    Neither the name nor the content type that the browser gives is trusted with anything.
    """
    access.refuse_unless_manager(user, project, "manager_imports")
    refuse_without_room()
    most = settings.RONDO_IMPORT_MAX_MB
    if upload.size is None or upload.size > most * 1024**2:
        raise Refusal(
            "file_too_large",
            _("The file is larger than %(most)s MB. Import it with manage.py import_judgments."),
            field="file",
            most=number_format(most),
        )
    count_upload(project=project, user=user, size=upload.size)
    stored_as = f"{uuid.uuid4().hex}{_kind(upload.name or '')}"
    path = _folder() / stored_as
    try:
        with path.open("xb") as stream:
            for part in upload.chunks():
                stream.write(part)
        return _recorded(project, path, (upload.name or stored_as)[-255:], user)
    except BaseException:
        uploaded_files().remove(path)
        raise


def _recorded(project: Project, path: Path, name: str, user: User) -> FileImport:
    plan = plan_of(path, name=name, unpack=False)
    values = {**plan_values(plan, ()), "preview": preview_values(path, plan)}
    uploaded_files().keep(path)
    with transaction.atomic():
        record = record_for(project=project, path=path, name=name, created_by=user)
        record = FileImport.objects.select_for_update().get(pk=record.pk)
        if record.state in BUSY:
            raise Refusal("file_in_import", _("This very file is being imported already."), field="file")
        before = record.stored_as
        record.stored_as, record.name, record.created_by = path.name, name, user
        for field, value in values.items():
            setattr(record, field, value)
        record.state, record.rows_done, record.rows_total = ImportState.UPLOADED, 0, 0
        record.errors, record.errors_total, record.counts = [], 0, {}
        record.save()
    if before:
        uploaded_files().remove(_folder() / before)
    return record


def correct_plan(
    *,
    record: FileImport,
    format_name: str,
    mapping: Stated,
    user: User,
    leave_out: Sequence[str] = (),
    meanings: Mapping[str, str] | None = None,
) -> Plan:
    """Read an uploaded file as a person says. Refuses a format and columns that do not fit it."""
    access.refuse_unless_manager(user, record.project, "manager_imports")
    path = path_of(record)
    plan = plan_of(
        path,
        name=record.name,
        format_name=format_name,
        mapping=mapping,
        leave_out=leave_out,
        meanings=meanings,
        unpack=False,
    )
    changed = FileImport.objects.filter(pk=record.pk).exclude(state__in=BUSY)
    if not changed.update(
        **plan_values(plan, leave_out),
        preview=preview_values(path, plan),
        state=ImportState.UPLOADED,
        errors=[],
        errors_total=0,
    ):
        raise Refusal("file_in_import", _("This very file is being imported already."), field="file")
    record.refresh_from_db()
    return plan


def start_import(*, record: FileImport, skip_bad: bool, user: User) -> None:
    """Have a worker bring the file in.

    Refuses one that is on its way already, and one with a column that may be a verdict and has no role.
    """
    access.refuse_unless_manager(user, record.project, "manager_imports")
    require_answers(column for column in accounts_of(record.account) if column.kind == "question")
    with transaction.atomic():
        started = (
            FileImport.objects.filter(pk=record.pk)
            .exclude(state__in=BUSY)
            .exclude(stored_as="")
            .update(
                state=ImportState.WAITING,
                skip_bad=skip_bad,
                rows_done=0,
                counts={},
                errors=[],
                errors_total=0,
                worker="",
                heartbeat_at=None,
            )
        )
        if not started:
            raise Refusal("file_in_import", _("This very file is being imported already."), field="file")
        audit.record(
            action="import.start",
            subject=record,
            actor=user,
            project=record.project,
            details={"format": record.format, "mapping": record.mapping, "bytes": record.size},
        )
        jobs.send_after_commit(TaskName.DO_IMPORT, record.pk)
    record.refresh_from_db()


def discard_upload(*, record: FileImport, user: User) -> None:
    """Delete an uploaded file. What was imported of it stays. Refuses one that is being imported."""
    access.refuse_unless_manager(user, record.project, "manager_imports")
    path = _folder() / record.stored_as if record.stored_as else None
    with transaction.atomic():
        if not FileImport.objects.filter(pk=record.pk).exclude(state__in=BUSY).update(stored_as=""):
            raise Refusal("file_in_import", _("This very file is being imported already."), field="file")
        if record.state == ImportState.UPLOADED:
            record.delete()
        if path is not None:
            transaction.on_commit(lambda: uploaded_files().remove(path))


def do_import(import_id: int) -> None:
    """Bring an uploaded file in, if nobody else does. How it ended stands in its row."""
    record = run_job(FileImport.objects.all(), import_id, _import, expected=(Refusal,), explain=_in_words)
    finished = FileImport.objects.filter(pk=import_id, state=ImportState.FINISHED)
    if record and finished.filter(stored_as=record.stored_as).update(stored_as=""):
        uploaded_files().remove(_folder() / record.stored_as)


def _import(record: FileImport, heartbeat: Heartbeat) -> str:
    heartbeat()
    if record.state == ImportState.UNDOING:
        undo(record, heartbeat)
        return ""
    _require_few_rows(record)
    import_rows(record, path_of(record), unpack=False)
    return ""


def sweep_imports() -> None:
    """Send a message for every file that waits, and for those whose worker has been silent."""
    jobs.sweep(FileImport.objects.all(), TaskName.DO_IMPORT)


def path_of(record: FileImport) -> Path:
    """Return the path of an uploaded file on this host, fetched where another one received it.

    Raises `Unavailable` where that cannot be done now.
    """
    return uploaded_files().here(_folder() / record.stored_as)


def _in_words(error: Exception) -> str:
    """Tell a manager why an import stopped, besides the errors of rows that its record lists."""
    if isinstance(error, ImportErrors):
        return ""
    if isinstance(error, Refusal):
        return error.message
    if isinstance(error, FileNotFoundError):
        return _("The uploaded file is no longer on the server. Upload it again.")
    if isinstance(error, MemoryError):
        return _(
            "The server ran out of memory while it read the file. Split the file, or ask the administrator."
        )
    return _(
        "The import stopped because of an error in Rondo (%(kind)s). Start it again: rows that are in "
        "stay in and are not added twice. If it stops again, ask the administrator to look into the log of "
        "the worker."
    ) % {"kind": type(error).__name__}


def _require_few_rows(record: FileImport) -> None:
    most = settings.RONDO_IMPORT_MAX_ROWS
    for number, _row in read_rows(path_of(record), unpack=False):
        if number > most:
            raise Refusal(
                "too_many_rows",
                _("The file has more than %(most)s rows. Import it with manage.py import_judgments."),
                field="file",
                most=number_format(most),
            )


def _folder() -> Path:
    folder = Path(settings.RONDO_IMPORTS)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _kind(name: str) -> str:
    """The ending by which text files differ, and no other."""
    return next((kind for kind in (".csv", ".tsv", ".jsonl", ".json") if name.lower().endswith(kind)), "")


# New projects that begin with a file.


@transaction.atomic
def create_with_upload(
    *,
    template: str,
    name: str,
    slug: str,
    description: str = "",
    upload: "UploadedFile[Any] | None" = None,
    created_by: User,
) -> tuple[Project, FileImport | None]:
    """Create a project from a template and keep a file to be looked through before it is imported.

    Refuses as `create_from_template` and `receive_upload` do; then there is neither project nor file.
    """
    project = create_from_template(
        template=template, name=name, slug=slug, description=description, created_by=created_by
    )
    if upload is None:
        return project, None
    return project, receive_upload(project=project, upload=upload, user=created_by)


# An import is undone: what it brought is deleted, as long as nobody has judged it or builds on it.
#
# Deleted are its judgments, comparisons, completions and prompts, and the categories and criteria that it
# made and nothing uses. What was there before it stays, and so do the accounts of its annotators.

_BATCH = 500
"""Rows deleted in one transaction: nobody who labels waits for longer than a moment."""


def request_undo(*, record: FileImport, user: User, deletes_used: bool = False) -> None:
    """Have a worker undo an import. Refuses one that is not in, and one that people build on.

    deletes_used: delete all the same what people annotated or used. For a day it can be brought back; what a
    snapshot holds stays for the record; what somebody labels or reviews now stays.
    """
    access.refuse_unless_manager(user, record.project, "manager_imports")
    with transaction.atomic():
        record = FileImport.objects.select_for_update().select_related("project").get(pk=record.pk)
        contents = {str(what): number for what, number in contents_of(record).items()}
        if deletes_used:
            _require_ended(record)
            deletes_used = why_not_undoable(record) is not None
        else:
            require_undoable(record)
        FileImport.objects.filter(pk=record.pk).update(
            state=ImportState.UNDOING,
            deletes_used=deletes_used,
            worker="",
            heartbeat_at=None,
            errors=[],
            errors_total=0,
        )
        audit.record(
            action="import.undo",
            subject=record,
            actor=user,
            project=record.project,
            details={"name": record.name, "counts": record.counts, "deleted": contents},
        )
        jobs.send_after_commit(TaskName.DO_IMPORT, record.pk)


def contents_of(record: FileImport) -> dict[str | Promise, int]:
    """Return what goes with an import, in words, with its number; what there is none of is left out."""
    prompts, comparisons = record.prompts.all(), record.comparisons.exclude(purpose=Purpose.DELETED)
    judgments = Judgment.everything.filter(
        Q(comparison__in=comparisons.values("pk")) | Q(comparison__prompt__in=prompts.values("pk"))
    ).aggregate(
        people=Count("pk", filter=Q(imported_from__isnull=True, annotator__is_machine=False)),
        machines=Count("pk", filter=Q(imported_from__isnull=True, annotator__is_machine=True)),
    )
    counts: dict[str | Promise, int] = {
        gettext_lazy("annotations by people"): judgments["people"],
        gettext_lazy("annotations by AI annotators"): judgments["machines"],
        gettext_lazy("imported annotations"): _judgments(record).count(),
        gettext_lazy("prompts"): prompts.count(),
        gettext_lazy("comparisons"): comparisons.count(),
    }
    return {what: number for what, number in counts.items() if number}


def why_not_undoable(record: FileImport) -> Refusal | None:
    """Return why an import that has ended cannot be undone without deleting what others use."""
    try:
        require_undoable(record)
    except Refusal as refusal:
        return refusal
    return None


def _require_ended(record: FileImport) -> None:
    if record.state not in (ImportState.FINISHED, ImportState.FAILED):
        raise Refusal("import_not_ended", _("Only an import that has ended can be undone."), field="state")


def require_undoable(record: FileImport) -> None:
    """Refuse an import that is not in, or of which something is in use."""
    _require_ended(record)
    judged = Judgment.everything.filter(comparison__file_import=record)
    others = judged.filter(~Q(imported_from__import=record.pk) | Q(imported_from__isnull=True))
    if others.exists() or Judgment.everything.filter(**_of_judgments("supersedes", record)).exists():
        raise Refusal(
            "import_annotated", _("Somebody has annotated what this import brought."), field="judgments"
        )
    held = Assignment.objects.filter(comparison__file_import=record)
    if held.filter(state__in=(AssignmentState.LEASED, AssignmentState.SKIPPED)).exists():
        raise Refusal(
            "import_in_annotation",
            _("Somebody is annotating what this import brought, or skipped it."),
            field="judgments",
        )
    turns = ConversationTurn.objects.filter(Q(comparison__file_import=record) | Q(prompt__file_import=record))
    if turns.exists():
        raise Refusal(
            "import_of_conversations",
            _("The import brought conversations, which cannot be undone."),
            field="conversations",
        )
    later = Comparison.objects.filter(prompt__file_import=record).exclude(file_import=record)
    sampled = Completion.objects.filter(prompt__file_import=record).exclude(source__kind=SourceKind.IMPORT)
    if later.exists() or sampled.exists():
        raise Refusal(
            "import_has_responses",
            _("Responses to prompts of this import were added later."),
            field="prompts",
        )
    for model, brought in _BROUGHT.items():
        if (user := _used_outside(model, brought, record)) is not None:
            raise Refusal(
                "import_in_use",
                _("What this import brought is used: %(by)s. It stays for the record."),
                field="used",
                by=user,
            )


def _of_judgments(name: str, record: FileImport) -> dict[str, Any]:
    """The condition that a relation of that name leads to a judgment of an import."""
    return {
        f"{name}__comparison__project": record.project_id,
        f"{name}__imported_from__import": record.pk,
    }


_BROUGHT: dict[type[models.Model], Callable[[str, FileImport], dict[str, Any]]] = {
    Judgment: _of_judgments,
    Comparison: lambda name, record: {f"{name}__file_import": record},
    Prompt: lambda name, record: {f"{name}__file_import": record},
    Completion: lambda name, record: {f"{name}__prompt__file_import": record},
}
"""Model → the condition that a relation leads to a row of it that an import brought."""


def _judgments(record: FileImport) -> QuerySet[Judgment]:
    return Judgment.everything.filter(comparison__project=record.project_id, imported_from__import=record.pk)


def _used_outside(
    model: type[models.Model], brought: Callable[[str, FileImport], dict[str, Any]], record: FileImport
) -> str | None:
    """The kind of rows of other applications, such as snapshots, that stand on what an import brought."""
    for relation in model._meta.get_fields(include_hidden=True):
        user = getattr(relation, "related_model", None)
        if not (isinstance(relation, ForeignObjectRel) and isinstance(user, type)):
            continue
        if not issubclass(user, models.Model) or user._meta.app_label == model._meta.app_label:
            continue
        if getattr(user, "IS_DERIVED", False):
            # Its rows are computed from others, and go with them.
            continue
        # The table between two models stands for the one that owns it.
        through = user._meta.auto_created
        owner: type[models.Model] = through if isinstance(through, type) else user
        if model is Prompt and (relation.many_to_many or owner is not user):
            # A set of prompts may lose one.
            continue
        if user._base_manager.filter(**brought(relation.field.name, record)).exists():
            return str(owner._meta.verbose_name_plural)
    return None


def undo(record: FileImport, beat: Callable[[], object]) -> None:
    """Delete what an import brought, some rows at a time. The caller holds the claim on the record.

    One that was cut off goes on where it stopped. Raises `Refusal` where something is in use after all.
    """
    if record.deletes_used:
        _delete_used(record, beat)
        return
    try:
        for ids in _batches(_judgments(record), beat):
            _delete_judgments(ids)
        for ids in _batches(record.comparisons.all(), beat):
            _delete_comparisons(ids)
        for ids in _batches(record.prompts.all(), beat):
            with transaction.atomic():
                Prompt.objects.filter(pk__in=ids).delete()
        _delete_unused(record)
    except ProtectedError:
        raise Refusal(
            "import_came_into_use",
            _("Something of this import came into use while it was undone. What is in use stays."),
            field="used",
        ) from None


def _delete_used(record: FileImport, beat: Callable[[], object]) -> None:
    """Delete what an import brought as managers delete rows of tables, so that it can be brought back."""
    arguments: dict[str, Any] = {"project": record.project, "actor": _undone_by(record)}
    for ids in _batches(record.prompts.all(), beat):
        delete_prompts(**arguments, chosen=ids)
    for ids in _batches(record.comparisons.filter(purpose=Purpose.WORK), beat):
        delete_comparisons(**arguments, chosen=ids)


def _undone_by(record: FileImport) -> User:
    """Return who asked for the undoing."""
    asked = AuditEntry.objects.filter(action="import.undo", subject_id=record.pk, actor__isnull=False)
    entry = asked.select_related("actor").order_by("-pk").first()
    if entry is None or entry.actor is None:
        raise Refusal("import_not_ended", _("Only an import that has ended can be undone."), field="state")
    return entry.actor


def _batches(rows: QuerySet[Any], beat: Callable[[], object]) -> Iterator[Sequence[int]]:
    last = 0
    # From the last one on: what stays is not looked through again for each batch.
    while ids := list(rows.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:_BATCH]):
        last = ids[-1]
        beat()
        yield ids


@transaction.atomic
def _delete_judgments(ids: Sequence[int]) -> None:
    """Delete judgments with their assignments; a comparison gets back the places that were added for them."""
    rows = Judgment.everything.filter(pk__in=ids)
    assignments = list(rows.values_list("assignment", flat=True))
    taken = rows.values("comparison").annotate(number=Count("pk")).values_list("comparison", "number")
    numbers: dict[int, list[int]] = {}
    for comparison, number in taken:
        numbers.setdefault(number, []).append(comparison)
    # Through the base manager: a judgment is written once, and leaves only with the import that brought it.
    Judgment._base_manager.filter(pk__in=ids).delete()
    Assignment.objects.filter(pk__in=assignments).delete()
    for number, comparisons in numbers.items():
        Comparison.objects.filter(pk__in=comparisons).update(
            overlap=Greatest(F("overlap") - number, F("open_slots"), 1), agreement=None
        )


@transaction.atomic
def _delete_comparisons(ids: Sequence[int]) -> None:
    """Delete comparisons, and the imported completions that stand in no other."""
    completions = list(
        Completion.objects.filter(candidacies__comparison__in=ids).values_list("pk", flat=True)
    )
    Comparison.objects.filter(pk__in=ids).delete()
    alone = Completion.objects.filter(
        pk__in=completions, candidacies__isnull=True, source__kind=SourceKind.IMPORT
    )
    Completion._base_manager.filter(pk__in=alone.values("pk")).delete()


def _delete_unused(record: FileImport) -> None:
    """Delete the categories and criteria that the import made and nothing uses."""
    made: dict[str, type[models.Model]] = {"categories": Category, "criteria": Criterion}
    for name, model in made.items():
        for pk in record.made.get(name, []):
            try:
                with transaction.atomic():
                    model._base_manager.filter(pk=pk, project=record.project_id).delete()
            except ProtectedError:
                continue
    FileImport.objects.filter(pk=record.pk).update(made={})
