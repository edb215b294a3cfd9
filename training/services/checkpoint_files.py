"""Files of checkpoints: verified, deleted, kept as long as the installation says."""

import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import JobState, WebhookEvent
from annotation.errors import Refusal
from annotation.models import User
from annotation.services import audit
from training.choices import CheckpointKind, RunState
from training.contract import ContractError, read_manifest
from training.contract.checkpoint import MANIFEST_FILE, manifest_digest
from training.contract.files import sha256_of_file
from training.contract.run import STATE_FOLDER
from training.files import shared as shared_files
from training.files.shared import fetched, key_of, shared, size_in_store, translate_store_errors
from training.models import Checkpoint, CheckpointExport, Run
from training.selectors.checkpoints import uses_of
from training.services.jobs import tell_of_checkpoint

# ── Verification by the digests of the registration ──


class FileState(StrEnum):
    """Result of checking one file."""

    INTACT = "intact"
    CHANGED = "changed"
    MISSING = "missing"
    UNKNOWN = "unknown"
    """It lies in the folder, and the manifest does not name it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedFile:
    """One file of a checkpoint's folder."""

    name: str
    state: FileState
    expected: str = ""
    """The digest that was registered."""
    found: str = ""
    size: int | None = None

    @property
    def is_sound(self) -> bool:
        """Return whether all files are intact."""
        return self.state == FileState.INTACT


def check_files(checkpoint: Checkpoint, *, in_store: bool = False) -> list[CheckedFile]:
    """Read every file of a checkpoint; what was found of each, the manifest first.

    The manifest is held against the digest in the database, all others against the manifest. Refuses a
    checkpoint that has no files here, and one that was never registered with digests. With `in_store` what a
    shared store holds of it is read as well.
    """
    if checkpoint.files_deleted_at:
        raise Refusal("files_deleted", _("The files of %(name)s were deleted."), name=checkpoint)
    if not checkpoint.digest:
        raise Refusal(
            "manifest_missing",
            _("%(checkpoint)s came without a manifest: there is nothing to hold its files against."),
            checkpoint=checkpoint,
        )
    folder = fetched(checkpoint.path)
    manifest = _checked(folder, MANIFEST_FILE, checkpoint.digest)
    files = [manifest]
    if not manifest.is_sound:
        return files
    named = read_manifest(folder).files
    files += [_checked(folder, name, digest) for name, digest in sorted(named.items())]
    others = sorted(path.name for path in folder.iterdir() if path.name not in (*named, MANIFEST_FILE))
    files += [CheckedFile(name=name, state=FileState.UNKNOWN) for name in others]
    return [*files, *(_in_store(checkpoint) if in_store else ())]


def _in_store(checkpoint: Checkpoint) -> list[CheckedFile]:
    """Return the files that the store lost or changed; each name begins with its location."""
    if (store := shared()) is None:
        return []
    key, _ = key_of(checkpoint.path)
    with translate_store_errors():
        if store.listing(key) is None:
            return [CheckedFile(name=f"store: {key}", state=FileState.MISSING)]
        return [CheckedFile(name=f"store: {name}", state=FileState.CHANGED) for name in store.damaged(key)]


def require_intact(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose files are not those that were registered, naming what is wrong.

    What lies beside them does not matter: nothing reads it.
    """
    wrong = [file for file in check_files(checkpoint) if file.state in (FileState.CHANGED, FileState.MISSING)]
    if wrong:
        damage = ", ".join(f"{file.name} is {file.state}" for file in wrong)
        raise Refusal(
            "checkpoint_damaged",
            _("%(checkpoint)s is damaged: %(damage)s. Put the file back from a copy, or train it again."),
            checkpoint=checkpoint,
            damage=damage,
        )


def require_registered(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose manifest is not the one that was registered. Reads one small file.

    Who loads the files checks them against the manifest; this ties the manifest to the database.
    """
    if checkpoint.files_deleted_at:
        raise Refusal(
            "files_deleted",
            _("The files of %(name)s were deleted. Choose another checkpoint."),
            name=checkpoint,
        )
    if not checkpoint.digest:
        return
    folder = fetched(checkpoint.path)
    try:
        digest = manifest_digest(folder)
    except (OSError, ContractError):
        digest = ""
    if digest != checkpoint.digest:
        state = "changed" if digest else "missing"
        raise Refusal(
            "checkpoint_damaged",
            _(
                "%(checkpoint)s is not as it was registered: its manifest is %(state)s. Put the "
                "files back from a copy, or choose another checkpoint."
            ),
            checkpoint=checkpoint,
            state=state,
        )


def _checked(folder: Path, name: str, expected: str) -> CheckedFile:
    path = folder / name
    try:
        if path.is_symlink() or not path.is_file():
            return CheckedFile(name=name, state=FileState.MISSING, expected=expected)
        digest, size = sha256_of_file(path), path.stat().st_size
    except OSError:
        return CheckedFile(name=name, state=FileState.MISSING, expected=expected)
    state = FileState.INTACT if digest == expected else FileState.CHANGED
    return CheckedFile(name=name, state=state, expected=expected, found=digest, size=size)


# ── Deletion ──


logger = logging.getLogger(__name__)

_GONE_PREFIX = ".deleted-"


def delete_files(*, checkpoint: Checkpoint, deleted_by: User | None, reason: str = "") -> None:
    """Delete a checkpoint's files. Its record stays, and with it where every answer came from.

    Refuses as long as anything needs the files, naming it. The files go after the commit; what a crash leaves
    of them goes with the next sweep.
    """
    with transaction.atomic():
        held = (
            Checkpoint.objects.select_for_update(of=("self",)).select_related("project").get(pk=checkpoint.pk)
        )
        if held.files_deleted_at:
            return
        if held.server_url:
            raise Refusal(
                "model_has_no_files", _("%(held)s is served elsewhere: it has no files here."), held=held
            )
        if uses := uses_of(held):
            listed = "; ".join(use.what for use in uses)
            raise Refusal(
                "checkpoint_in_use",
                _("The files of %(held)s are still needed by: %(listed)s."),
                held=held,
                listed=listed,
            )
        held.files_deleted_at = timezone.now()
        held.save(update_fields=["files_deleted_at"])
        audit.record(
            action="checkpoint.delete",
            subject=held,
            actor=deleted_by,
            project=held.project,
            details={"digest": held.digest, **({"reason": reason} if reason else {})},
        )
        tell_of_checkpoint(held, WebhookEvent.CHECKPOINT_DELETED)
        transaction.on_commit(lambda: remove_folder(held.path))
    checkpoint.files_deleted_at = held.files_deleted_at


def sweep_deleted() -> None:
    """Remove what is left of checkpoints whose files were deleted: a crash came between row and folder."""
    folder = Path(settings.RONDO_CHECKPOINTS)
    if not folder.is_dir():
        return
    there = [path.name for path in folder.iterdir()]
    for name in there:
        if name.startswith(_GONE_PREFIX):
            shutil.rmtree(folder / name, ignore_errors=True)
    gone = Checkpoint.objects.filter(files_deleted_at__isnull=False, name__in=there)
    for checkpoint in gone:
        remove_folder(checkpoint.path)


def sweep_store() -> None:
    """Remove from the store what is left of checkpoints whose files were deleted while it was away."""
    if (store := shared_files.shared()) is None:
        return
    with shared_files.translate_store_errors():
        there = store.names(Path(settings.RONDO_CHECKPOINTS).name)
    for checkpoint in Checkpoint.objects.filter(files_deleted_at__isnull=False, name__in=there):
        shared_files.forget(checkpoint.path)


def remove_folder(folder: Path) -> None:
    """Remove a folder below `RONDO_HOME`, and from the store; to readers it vanishes at once.

    One elsewhere is left alone.
    """
    home = Path(settings.RONDO_HOME).resolve()
    if folder.is_symlink() or not folder.resolve().is_relative_to(home) or folder.resolve() == home:
        logger.error("%s lies outside %s and is left alone", folder, home)
        return
    shared_files.forget(folder)
    gone = folder.with_name(f"{_GONE_PREFIX}{folder.name}")
    try:
        shutil.rmtree(gone, ignore_errors=True)
        os.replace(folder, gone)
    except FileNotFoundError:
        return
    except OSError as error:
        logger.error("%s could not be removed: %s", folder, error)
        return
    shutil.rmtree(gone, ignore_errors=True)


# ── Retention: expired files are deleted once a day ──


EXPORT_DAYS = 7
"""So long an exported folder waits to be fetched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaving:
    """Something whose files go."""

    what: str
    size: int
    """Bytes."""
    checkpoint: Checkpoint | None = None
    run: Run | None = None
    export: CheckpointExport | None = None


def expired_files() -> list[Leaving]:
    """Return the expired files: checkpoints that nothing needs, states of finished runs, old exports."""
    return [*_checkpoints(), *_run_states(), *_exports()]


def apply_retention() -> list[Leaving]:
    """Delete what the settings do not keep; what went. Something that is needed since is left."""
    sweep_store()
    went = []
    for leaving in expired_files():
        try:
            _remove(leaving)
        except Refusal:
            continue
        went.append(leaving)
    return went


def _remove(leaving: Leaving) -> None:
    if leaving.checkpoint:
        delete_files(checkpoint=leaving.checkpoint, deleted_by=None, reason="retention")
    elif leaving.run:
        run = leaving.run
        audit.record(action="run.delete_state", subject=run, project=run.snapshot.project)
        remove_folder(run.path / STATE_FOLDER)
    elif leaving.export:
        CheckpointExport.objects.filter(pk=leaving.export.pk).update(folder="")
        remove_folder(Path(settings.RONDO_HOME) / "exports" / str(leaving.export.pk))


def _checkpoints() -> Iterator[Leaving]:
    """Return all but the newest RONDO_KEEP_CHECKPOINTS unused and untagged ones of each project and kind."""
    counts: dict[tuple[int | None, str], int] = {}
    if not settings.RONDO_KEEP_CHECKPOINTS:
        return
    with_files = Checkpoint.objects.filter(files_deleted_at__isnull=True, server_url="", tags=[])
    trained = with_files.exclude(kind=CheckpointKind.STARTER).select_related(
        "project", "run__round_step__round"
    )
    for checkpoint in trained.order_by("-pk"):
        if uses_of(checkpoint):
            continue
        group = checkpoint.project_id, checkpoint.kind
        counts[group] = counts.get(group, 0) + 1
        if counts[group] > settings.RONDO_KEEP_CHECKPOINTS:
            yield Leaving(what=f"checkpoint {checkpoint}", size=_size(checkpoint.path), checkpoint=checkpoint)


def _run_states() -> Iterator[Leaving]:
    """Return all but each project's newest RONDO_KEEP_RUN_STATES states of finished runs."""
    counts: dict[int, int] = {}
    if not settings.RONDO_KEEP_RUN_STATES:
        return
    finished = Run.objects.filter(state=RunState.FINISHED, checkpoint__isnull=False)
    for run in finished.select_related("snapshot__project").order_by("-pk"):
        state = run.path / STATE_FOLDER
        size = _size(state)
        if not size:
            continue
        project = run.snapshot.project_id
        counts[project] = counts.get(project, 0) + 1
        if counts[project] > settings.RONDO_KEEP_RUN_STATES:
            yield Leaving(what=f"state of run {run}", size=size, run=run)


def _exports() -> Iterator[Leaving]:
    before = timezone.now() - timedelta(days=EXPORT_DAYS)
    old = CheckpointExport.objects.filter(state=JobState.FINISHED, finished_at__lt=before).exclude(folder="")
    for export in old.select_related("checkpoint"):
        yield Leaving(what=f"export of {export}", size=_size(export.path), export=export)


def _size(folder: Path) -> int:
    """Here, or where it is not, in the store."""
    here = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return here or size_in_store(folder)
