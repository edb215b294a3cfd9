"""Watched folders and buckets: new and changed files are imported as uploads are."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.files.uploadedfile import TemporaryUploadedFile
from django.db import IntegrityError, transaction
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from annotation.choices import ImportState, TaskName
from annotation.errors import Refusal
from annotation.exchange.file_imports import digest_of
from annotation.exchange.uploads import receive_upload, start_import
from annotation.models import FileImport, ImportSource, Project, SourceFile, User
from annotation.selectors import access
from annotation.services import audit, jobs
from annotation.services.job_runs import EXPECTED, run_job
from annotation.services.jobs import Heartbeat

MOST_SOURCES = 20
"""Of one project."""
MOST_FILES = 10_000
"""Files of one source."""
_ENDINGS = (
    ".jsonl",
    ".json",
    ".csv",
    ".tsv",
    ".jsonl.gz",
    ".json.gz",
    ".csv.gz",
    ".txt",
    ".parquet",
    ".arrow",
)
_WAITS = ("too_many_uploads", "too_many_waiting_files", "disk_full")
"""Refusals that pass: the rest of the files follows with the next check."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A file of a source, as it is now."""

    path: str
    size: int
    version: str


def add_source(*, project: Project, address: str, skip_bad: bool, added_by: User) -> ImportSource:
    """Watch a folder or bucket. Its files are imported with the next check, and then whenever they change.

    Refuses who does not manage the project, an address that the operator did not allow, one without a driver
    here, one that the project watches, and more than `MOST_SOURCES`.
    """
    access.refuse_unless_manager(added_by, project, "manager_imports")
    address = address.strip()
    check_address(address)
    if project.import_sources.count() >= MOST_SOURCES:
        raise Refusal(
            "too_many_sources",
            _("A project has at most %(most)s sources."),
            field="address",
            most=MOST_SOURCES,
        )
    try:
        with transaction.atomic():
            source = ImportSource.objects.create(
                project=project,
                address=address,
                skip_bad=skip_bad,
                created_by=added_by,
                next_check_at=Now(),
            )
            source.refresh_from_db(fields=["next_check_at"])
            _note("source.add", source, added_by)
            jobs.send_after_commit(TaskName.CHECK_SOURCE, source.pk)
    except IntegrityError:
        raise Refusal(
            "source_exists", _("The project watches this address already."), field="address"
        ) from None
    return source


def set_source(*, source: ImportSource, active: bool, changed_by: User) -> None:
    """Pause a source, or let it go on, which checks it now."""
    access.refuse_unless_manager(changed_by, source.project, "manager_imports")
    with transaction.atomic():
        source.is_active, source.next_check_at = active, Now()
        source.save(update_fields=["is_active", "next_check_at"])
        source.refresh_from_db(fields=["next_check_at"])
        _note("source.resume" if active else "source.pause", source, changed_by)
        if active:
            jobs.send_after_commit(TaskName.CHECK_SOURCE, source.pk)


def remove_source(*, source: ImportSource, removed_by: User) -> None:
    """Watch a source no longer. What was imported stays."""
    access.refuse_unless_manager(removed_by, source.project, "manager_imports")
    with transaction.atomic():
        _note("source.remove", source, removed_by)
        source.delete()


def check_source(pk: int) -> None:
    """Import the new and changed files of a source, unless another worker does, or it is not due."""
    run_job(
        ImportSource.objects.select_related("project", "created_by"),
        pk,
        _check_or_repeat,
        expected=(*EXPECTED, ImportError),
    )


def sweep_sources() -> None:
    """Send a message for every source that is due."""
    jobs.sweep(ImportSource.objects.filter(project__deleted_at__isnull=True), TaskName.CHECK_SOURCE)


def check_address(address: str) -> None:
    """Refuse an address that is not below one of `RONDO_SOURCES`, and one whose driver is not installed."""
    protocol, _separator, rest = address.rpartition("://")
    parts = rest.split("/")
    if ".." in parts or (not protocol and not rest.startswith("/")):
        raise Refusal(
            "invalid_source",
            _("Enter an absolute folder or a URL such as s3://bucket/prompts, without “..”."),
            field="address",
        )
    if not any(_is_below(address, allowed) for allowed in settings.RONDO_SOURCES):
        raise Refusal(
            "source_not_allowed",
            _(
                "The operator of this installation does not allow %(address)s. RONDO_SOURCES lists what may "
                "be watched."
            ),
            field="address",
            address=address,
        )
    # Imported late: web processes that add no source do without it.
    import fsspec

    try:
        fsspec.get_filesystem_class(protocol or "file")
    except (ImportError, ValueError):
        raise Refusal(
            "source_without_driver",
            _("No driver for %(protocol)s:// is installed. The operator can install one; of S3 it is s3fs."),
            field="address",
            protocol=protocol,
        ) from None


def _is_below(address: str, allowed: str) -> bool:
    if "://" in address or "://" in allowed:
        return f"{address.rstrip('/')}/".startswith(f"{allowed.rstrip('/')}/")
    # Links are followed first: one inside may lead out.
    return Path(address).resolve().is_relative_to(Path(allowed).resolve())


def _check_or_repeat(source: ImportSource, heartbeat: Heartbeat) -> str:
    """Check a source. A failure that its page shows already is no news for managers."""
    try:
        message = _check(source, heartbeat)
    except Exception as error:
        text = str(error) if isinstance(error, (*EXPECTED, ImportError)) else type(error).__name__
        if source.error and source.error.startswith(text):
            return source.message
        raise
    jobs.write(source, error="")
    return message


def _check(source: ImportSource, heartbeat: Heartbeat) -> str:
    import fsspec

    check_address(source.address)
    known = dict(source.files.values_list("path", "version"))
    # Credentials are those of the operator's environment.
    files, root = fsspec.core.url_to_fs(source.address, skip_instance_cache=True)
    taken = failed = 0
    for found in _found(files, root, source):
        heartbeat()
        if known.get(found.path) == found.version:
            continue
        try:
            record, error = _take(source, files, found)
        except Refusal as refusal:
            if refusal.code in _WAITS:
                return _("imported: %(taken)s; the others follow: %(reason)s") % {
                    "taken": taken,
                    "reason": refusal.message,
                }
            record, error = None, refusal.message
        with jobs.still_held(source):
            SourceFile.objects.update_or_create(
                source=source,
                path=found.path,
                defaults={"version": found.version, "file_import": record, "error": error},
            )
        taken, failed = taken + (not error), failed + bool(error)
    if not taken and not failed:
        return _("nothing new")
    return _("imported: %(taken)s, refused: %(failed)s") % {"taken": taken, "failed": failed}


def _found(files: Any, root: str, source: ImportSource) -> Iterator[_Found]:
    """Yield the files of a source that can be imported, by name. Hidden ones are still being written."""
    if not files.exists(root):
        raise Refusal("source_not_found", _("There is no folder %(address)s."), address=source.address)
    listed: Mapping[str, Mapping[str, Any]] = files.find(root, detail=True)
    if len(listed) > MOST_FILES:
        raise Refusal("too_many_source_files", _("A source has at most %(most)s files."), most=MOST_FILES)
    for path, entry in sorted(listed.items()):
        name = path.rpartition("/")[2]
        if entry.get("type") != "file" or name.startswith(".") or not name.lower().endswith(_ENDINGS):
            continue
        if "://" not in source.address and not any(_is_below(path, root) for root in settings.RONDO_SOURCES):
            continue
        changed = next(
            (entry[key] for key in ("ETag", "md5Hash", "etag", "LastModified", "mtime") if entry.get(key)), ""
        )
        yield _Found(path=path, size=int(entry["size"]), version=f"{entry['size']}:{changed}"[:200])


def _take(source: ImportSource, files: Any, found: _Found) -> tuple[FileImport, str]:
    """Import a file; return its import, and what a person must say about it before it starts.

    What the project imported before, under any name, is only noted.
    """
    most = settings.RONDO_IMPORT_MAX_MB
    if found.size > most * 1024**2:
        raise Refusal(
            "file_too_large",
            _("The file is larger than %(most)s MB. Import it with manage.py import_judgments."),
            field="file",
            most=most,
        )
    name = found.path.rpartition("/")[2]
    with TemporaryUploadedFile(name, "", found.size, None) as upload:
        files.get_file(found.path, upload.temporary_file_path())
        path = Path(upload.temporary_file_path())
        upload.size = path.stat().st_size
        before = source.project.file_imports.filter(digest=digest_of(path)[0], state=ImportState.FINISHED)
        if (record := before.first()) is not None:
            return record, ""
        record = receive_upload(project=source.project, upload=upload, user=source.created_by)
    try:
        start_import(record=record, skip_bad=source.skip_bad, user=source.created_by)
    except Refusal as refusal:
        return record, refusal.message
    return record, ""


def _note(action: str, source: ImportSource, actor: User) -> None:
    audit.record(
        action=action,
        subject=source,
        actor=actor,
        project=source.project,
        details={"address": source.address},
    )
