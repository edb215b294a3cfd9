"""Checkpoints enter the registry, get tags and notes; models of other servers have no files."""

import dataclasses
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.utils.translation import gettext as _

from annotation.choices import SourceKind, WebhookEvent
from annotation.errors import NotAllowed, Refusal
from annotation.models import CompletionSource, Project, User
from annotation.services import audit
from annotation.services.audit import record
from training.choices import BaseOrigin, CheckpointKind, Method
from training.contract import ContractError, read_manifest
from training.contract.checkpoint import manifest_digest
from training.engine import EngineError, check_url, key_of
from training.files import shared
from training.models import BaseModel, Checkpoint, Run
from training.services.base_models import STARTER_PACKAGE, register_base_model, require_free_name
from training.services.jobs import tell_of_checkpoint
from training.services.runs.files import of_finished

# ── Registration ──


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


# ── Tags and notes of checkpoints and runs ──


MOST_TAGS = 20
LONGEST_NOTE = 20_000
TAG = re.compile(r"[\w][\w .:+-]{0,39}")


def describe_checkpoint(
    *, checkpoint: Checkpoint, tags: Sequence[str], notes: str, described_by: User
) -> None:
    """Give a checkpoint other tags and notes. Refuses what is no tag, and too much of either.

    Nothing is written where nothing changed.
    """
    _describe(checkpoint, tags=tags, notes=notes, user=described_by, project=checkpoint.project)


def describe_run(*, run: Run, tags: Sequence[str], notes: str, described_by: User) -> None:
    """Give a run other tags and notes. Refuses what is no tag, and too much of either.

    Nothing is written where nothing changed.
    """
    _describe(run, tags=tags, notes=notes, user=described_by, project=run.snapshot.project)


def _describe(
    row: Checkpoint | Run, *, tags: Sequence[str], notes: str, user: User, project: Project | None
) -> None:
    unique_tags = list(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
    _require_tags(unique_tags)
    if len(notes) > LONGEST_NOTE:
        raise Refusal(
            "notes_too_long",
            _("Notes have at most %(most)d characters; these have %(count)d."),
            field="notes",
            most=LONGEST_NOTE,
            count=len(notes),
        )
    if "\0" in notes:
        raise Refusal("text_holds_nul", _("Notes contain a NUL character. Remove it."), field="notes")
    kind = row._meta.model_name
    with transaction.atomic():
        held = type(row)._default_manager.select_for_update(of=("self",)).get(pk=row.pk)
        if held.tags != unique_tags:
            details = {"before": held.tags, "after": unique_tags}
            audit.record(action=f"{kind}.tag", subject=held, actor=user, project=project, details=details)
        if held.notes != notes:
            audit.record(action=f"{kind}.note", subject=held, actor=user, project=project)
        type(row)._default_manager.filter(pk=held.pk).update(tags=unique_tags, notes=notes)
    row.tags, row.notes = unique_tags, notes


def _require_tags(tags: Sequence[str]) -> None:
    for tag in tags:
        if not TAG.fullmatch(tag):
            raise Refusal(
                "invalid_tag",
                _("%(tag)s is no tag: use up to 40 letters, digits, spaces, dots, colons and dashes."),
                field="tags",
                tag=repr(tag[:60]),
            )
    if len(tags) > MOST_TAGS:
        raise Refusal("too_many_tags", _("Use at most %(most)d tags."), field="tags", most=MOST_TAGS)


# ── Models of other servers ──


def register_served_model(
    *, name: str, url: str, model: str = "", key: str = "", project: Project | None = None, by: User
) -> Checkpoint:
    """Write down a model that another OpenAI-compatible server answers for.

    It answers prompts, is compared and judges like any checkpoint; nothing can be trained from it here.
    For superusers alone: whoever may choose an address and a key may send that key there. Refuses an
    address that is not asked, a variable that is no server's key or is not set, and a name that is taken.
    """
    if not by.is_superuser:
        raise NotAllowed(
            "administrator_changes_served_models", _("Only an administrator adds models of other servers.")
        )
    require_free_name(name)
    try:
        check_url(url)
    except EngineError as error:
        raise Refusal("server_address_refused", str(error), field="url") from error
    try:
        key_of(key)
    except EngineError as error:
        raise Refusal("server_key_refused", str(error), field="key") from error
    with transaction.atomic():
        base = register_base_model(
            name=name,
            origin=BaseOrigin.SERVER,
            created_by=by,
            project=project,
            server_url=url,
            server_model=model,
            server_key=key,
        )
        checkpoint = base.starter
        details = {"url": url, "model": model, "key": key}
        record(action="checkpoint.serve", subject=checkpoint, actor=by, project=project, details=details)
    return checkpoint
