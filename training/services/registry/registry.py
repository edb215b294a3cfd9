"""Deletion of a checkpoint's files."""

import logging
import os
import shutil
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import WebhookEvent
from annotation.errors import Refusal
from annotation.models import User
from annotation.services import audit
from training.files import shared as shared_files
from training.models import Checkpoint
from training.selectors.checkpoints import uses_of
from training.services.jobs.events import tell_of_checkpoint

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
