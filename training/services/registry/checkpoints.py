"""Checkpoints enter the collection: verified, copied whole, written down with their origin."""

import dataclasses
import os
import shutil
import tempfile
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.utils.translation import gettext as _

from annotation.choices import SourceKind, WebhookEvent
from annotation.errors import Refusal
from annotation.models import CompletionSource
from training.choices import BaseOrigin, CheckpointKind, Method
from training.contract import ContractError, manifest_digest, read_manifest
from training.files import shared
from training.models import BaseModel, Checkpoint, Run
from training.services.jobs.events import tell_of_checkpoint
from training.services.registry.base_models import STARTER_PACKAGE, register_base_model
from training.services.runs.run_files import of_finished


def register_starter(*, name: str | None = None) -> Checkpoint:
    """Return the checkpoint of the base model, which answers the first round; create it once.

    Its weights need not be there yet: the model server says when it can answer.
    """
    model_name = name or settings.RONDO_STARTER_MODEL_NAME
    origin = BaseOrigin.STARTER if model_name == STARTER_PACKAGE else BaseOrigin.FOLDER
    return register_base_model(name=model_name, origin=origin).starter


def register_checkpoint(*, run: Run) -> Checkpoint:
    """Take a finished run's `checkpoint/` into the collection, under the run's name.

    Every file is checked against the manifest after it was copied; the folder appears whole
    or not at all. Calling it again changes nothing. Refuses a damaged folder, one that
    another run wrote, and a name whose folder holds something else. Where machines share a store, the files
    are there before the row is, so that whoever sees the row can have them.
    """
    if existing := Checkpoint.objects.filter(run=run).first():
        return existing
    kind = CheckpointKind.REWARD if run.method == Method.REWARD else CheckpointKind.POLICY
    folder = Path(settings.RONDO_CHECKPOINTS) / run.name
    try:
        shared.fetched(folder)
        _copy_whole(of_finished(run), folder)
        manifest = read_manifest(folder, verify=True)
    except (ContractError, FileNotFoundError) as error:
        raise Refusal(
            "checkpoint_damaged",
            _(
                "The checkpoint of %(run)s is damaged (%(error)s). Take the round back to "
                "labelling, then start it."
            ),
            run=run,
            error=error,
        ) from error
    except OSError as error:
        raise Refusal(
            "folder_not_writable",
            _("%(folder)s cannot be written (%(error)s). Make room or mend it, then start again."),
            folder=folder,
            error=error.strerror,
        ) from error
    if (manifest.name, manifest.kind) != (run.name, kind):
        raise Refusal(
            "folder_holds_other_checkpoint",
            _(
                "%(folder)s holds %(kind_there)s %(name_there)r, not %(kind)s %(name)r. Move it "
                "away, then start again."
            ),
            folder=folder,
            kind_there=manifest.kind,
            name_there=manifest.name,
            kind=kind,
            name=run.name,
        )
    shared.publish(folder)
    with transaction.atomic():
        source = None
        if kind == CheckpointKind.POLICY:
            source, _created = CompletionSource.objects.get_or_create(
                name=run.name, defaults={"kind": SourceKind.CHECKPOINT}
            )
        checkpoint, created = Checkpoint.objects.get_or_create(
            run=run,
            defaults={
                "name": run.name,
                "kind": kind,
                "project": run.snapshot.project,
                "base_model": manifest.base_model,
                "base": BaseModel.objects.filter(name=manifest.base_model).first(),
                "parent": run.parent,
                "folder": str(folder.relative_to(settings.RONDO_HOME)),
                "digest": manifest_digest(folder),
                "manifest": dataclasses.asdict(manifest),
                "source": source,
            },
        )
        if created:
            tell_of_checkpoint(checkpoint, WebhookEvent.CHECKPOINT_REGISTERED)
    return checkpoint


def _copy_whole(origin: Path, target: Path) -> None:
    """Copy a checkpoint folder so that `target` is there completely or not at all."""
    if target.exists():
        if manifest_digest(target) != manifest_digest(origin):
            raise Refusal(
                "folder_holds_other_checkpoint",
                _("%(target)s holds another checkpoint. Move it away, then start again."),
                target=target,
            )
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=target.parent, prefix=".draft-"))
    try:
        shutil.copytree(origin, draft, dirs_exist_ok=True)
        read_manifest(draft, verify=True)
        draft.chmod(0o755)
        os.replace(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
