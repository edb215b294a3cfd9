"""Base models: requested, registered, chosen as the default, removed. `base_adding` carries requests out."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from annotation.choices import JobState, SourceKind
from annotation.errors import NotAllowed, Refusal
from annotation.models import CompletionSource, User
from annotation.services import audit
from annotation.services.jobs.messages import send_after_commit
from training.choices import BaseOrigin, CheckpointKind, JobKind, TaskName
from training.engine import EngineError, check_url, key_of
from training.files.hub import HubError, HubModel, look_up
from training.models import BaseModel, BaseModelAddition, Checkpoint, validate_checkpoint_name
from training.selectors.base_models import uses_of_base
from training.services.registry.registry import remove_folder

STARTER_PACKAGE = "SmolLM2-135M-Instruct"
"""Name of the model that the starter package holds (`training.rlhf.starter`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewBaseModel:
    """A base model to be added; each origin reads the fields that it needs."""

    origin: BaseOrigin
    name: str = ""
    """Empty takes the folder's, the repository's or the server's name."""
    folder: str = ""
    repository: str = ""
    revision: str = ""
    licence: str | None = None
    """The licence that the user accepts, as the hub names it; None accepts none."""
    server_url: str = ""
    server_model: str = ""
    server_key: str = field(default="", repr=False)
    """The variable that holds the server's key."""

    @property
    def effective_name(self) -> str:
        """Return the name that it will bear."""
        by_origin = {
            BaseOrigin.STARTER: STARTER_PACKAGE,
            BaseOrigin.FOLDER: Path(self.folder).name,
            BaseOrigin.HUB: self.repository.rpartition("/")[2],
            BaseOrigin.SERVER: self.server_model.rpartition("/")[2],
        }
        return self.name.strip() or by_origin[self.origin]


def look_up_on_hub(*, repository: str, revision: str = "") -> HubModel:
    """Ask the hub for a model's commit, licence and size. Refuses what the hub does not have."""
    try:
        return look_up(repository.strip(), revision=revision.strip(), token=settings.RONDO_HUB_TOKEN)
    except HubError as error:
        raise Refusal("hub_refused", str(error), field="repository") from error


def request_base_model(*, new_base: NewBaseModel, requested_by: User) -> BaseModelAddition:
    """Have a worker add a base model. A worker is told after the commit.

    For superusers alone: it fills a disk or sends a key to a server. Refuses a name that is taken or not
    valid, a folder outside the allowed ones, a GGUF file, a licence that is not accepted, and a refused
    address.
    """
    if not requested_by.is_superuser:
        raise NotAllowed("administrator_changes_base_models", _("Only an administrator adds base models."))
    _require_free_name(new_base.effective_name)
    values: dict[str, Any] = {"name": new_base.effective_name, "origin": new_base.origin}
    match new_base.origin:
        case BaseOrigin.STARTER:
            if values["name"] != STARTER_PACKAGE:
                raise Refusal(
                    "starter_package_name",
                    _("The starter package is called %(name)s."),
                    field="name",
                    name=STARTER_PACKAGE,
                )
        case BaseOrigin.FOLDER:
            folder = allowed_folder(new_base.folder)
            _refuse_gguf(folder)
            values["folder"] = str(folder)
        case BaseOrigin.HUB:
            values |= _of_hub(new_base)
        case BaseOrigin.SERVER:
            values |= _of_server(new_base)
    return _start(values, requested_by)


def inspect_again(*, base: BaseModel, requested_by: User | None) -> BaseModelAddition:
    """Have a worker read a base model's files again: their digests, sizes and chat template."""
    if requested_by is not None and not requested_by.is_superuser:
        raise NotAllowed(
            "administrator_changes_base_models", _("Only an administrator inspects base models.")
        )
    values = {"name": base.name, "origin": base.origin, "base": base}
    if not base.has_files:
        raise Refusal(
            "model_has_no_files", _("%(name)s is on another server: it has no files here."), name=base
        )
    return _start(values, requested_by)


def cancel_addition(*, addition: BaseModelAddition, cancelled_by: User) -> None:
    """Stop adding a base model; a worker removes what was downloaded. One that has ended stays as it is."""
    if not cancelled_by.is_superuser:
        raise NotAllowed("administrator_changes_base_models", _("Only an administrator adds base models."))
    going_on = BaseModelAddition.objects.filter(
        pk=addition.pk, state__in=(JobState.WAITING, JobState.RUNNING), cancel_requested=False
    )
    with transaction.atomic():
        if going_on.update(cancel_requested=True):
            audit.record(action="base_model.cancel", subject=addition, actor=cancelled_by)
            send_after_commit(TaskName.DO_JOB, JobKind.BASE_MODEL, addition.pk)


def remove_base_model(*, base: BaseModel, removed_by: User) -> None:
    """Remove a base model that nothing needs, with its files. Refuses while anything does, naming it."""
    if not removed_by.is_superuser:
        raise NotAllowed("administrator_changes_base_models", _("Only an administrator removes base models."))
    with transaction.atomic():
        held = BaseModel.objects.select_for_update().get(pk=base.pk)
        if uses := uses_of_base(held):
            raise Refusal(
                "model_in_use", _("%(name)s is still needed by: %(uses)s."), name=held, uses="; ".join(uses)
            )
        path = held.path
        starter = held.starter
        source = starter.source
        starter.delete()
        if source is not None:
            source.delete()
        audit.record(action="base_model.remove", subject=held, actor=removed_by)
        held.delete()
        if base.has_files:
            transaction.on_commit(lambda: remove_folder(path))


@transaction.atomic
def register_base_model(*, name: str, origin: BaseOrigin, **fields: Any) -> BaseModel:
    """Write down a base model with the checkpoint that answers with it; once for each name.

    fields: of `BaseModel`; those named `server_…` are its checkpoint's.
    """
    server = {key: fields.pop(key) for key in list(fields) if key.startswith("server_")}
    base, _created = BaseModel.objects.get_or_create(name=name, defaults={"origin": origin, **fields})
    source, _created = CompletionSource.objects.get_or_create(
        name=name, defaults={"kind": SourceKind.CHECKPOINT}
    )
    starter, _created = Checkpoint.objects.get_or_create(
        name=name,
        defaults={
            "kind": CheckpointKind.STARTER,
            "base_model": server.get("server_model") or name,
            "base": base,
            # A model of another server has no folder.
            "folder": "" if server else os.path.relpath(base.path, settings.RONDO_HOME),
            "source": source,
            **server,
        },
    )
    if starter.base_id is None:
        # Registered by a release that knew no base models.
        starter.base = base
        starter.save(update_fields=["base"])
    return base


def allowed_folder(text: str) -> Path:
    """Return a folder on the server that may be read. Refuses one outside `allowed_roots`."""
    roots = allowed_roots()
    named = text.strip()
    folder = Path(named).expanduser()
    resolved = Path(os.path.realpath(folder))
    if not named or not folder.is_absolute():
        raise Refusal("folder_not_absolute", _("Write the folder’s absolute path."), field="folder")
    if "\0" in named or not any(resolved.is_relative_to(root) and resolved != root for root in roots):
        raise Refusal(
            "folder_not_allowed",
            _(
                "%(folder)s is not below an allowed folder (%(roots)s). Move the model there, or add its "
                "parent folder to RONDO_BASE_MODEL_FOLDERS and restart Rondo."
            ),
            field="folder",
            folder=named[:200],
            roots=", ".join(map(str, roots)),
        )
    return resolved


def _refuse_gguf(folder: Path) -> None:
    """Refuse a GGUF file, and a folder whose model is one."""
    files = [folder] if folder.suffix == ".gguf" else sorted(folder.glob("*.gguf"))
    if files and not (folder / "config.json").is_file():
        raise Refusal(
            "gguf_not_supported",
            _(
                "%(file)s is a GGUF file, which is not read. Name a folder with the model’s original "
                "weights: config.json, tokenizer.json and *.safetensors."
            ),
            field="folder",
            file=files[0].name,
        )


def allowed_file(file: Path) -> Path:
    """Return a file with its links followed. Refuses one that leads out of the allowed folders."""
    resolved = Path(os.path.realpath(file))
    if not any(resolved.is_relative_to(root) for root in allowed_roots()):
        raise Refusal(
            "link_leads_outside",
            _("%(file)s is a link to a file outside the allowed folders. Put a copy in its place."),
            field="folder",
            file=file,
        )
    return resolved


def allowed_roots() -> list[Path]:
    """Return the folders below which base models may be read: RONDO_BASE_MODEL_FOLDERS and Rondo's own."""
    named = [settings.RONDO_MODELS, *settings.RONDO_BASE_MODEL_FOLDERS]
    return [Path(os.path.realpath(Path(folder).expanduser())) for folder in named]


def _require_free_name(name: str) -> None:
    try:
        validate_checkpoint_name(name)
    except ValidationError as error:
        raise Refusal("invalid_model_name", error.messages[0], field="name") from error
    name_exists = (
        BaseModel.objects.filter(name=name).exists()
        or Checkpoint.objects.filter(name=name).exists()
        or CompletionSource.objects.filter(name=name).exists()
    )
    if name_exists:
        raise Refusal(
            "model_name_in_use",
            _("A base model, checkpoint or imported set is called %(name)s. Choose another name."),
            field="name",
            name=name,
        )


def _of_hub(new_base: NewBaseModel) -> dict[str, Any]:
    model = look_up_on_hub(repository=new_base.repository, revision=new_base.revision)
    if new_base.licence != model.licence:
        message = (
            _("%(name)s has the licence %(licence)r (%(url)s). Read it and accept it by this name.")
            if model.licence
            else _("%(name)s names no licence (%(url)s). Read what is there, and accept it without a name.")
        )
        raise Refusal(
            "licence_not_accepted",
            message,
            field="licence",
            name=model.repository,
            licence=model.licence,
            url=model.licence_url,
        )
    return {"repository": model.repository, "revision": model.revision, "licence": model.licence}


def _of_server(new_base: NewBaseModel) -> dict[str, Any]:
    if not new_base.server_model.strip():
        raise Refusal(
            "server_model_missing", _("Write the model’s name on the server."), field="server_model"
        )
    try:
        check_url(new_base.server_url)
    except EngineError as error:
        raise Refusal("server_address_refused", str(error), field="server_url") from error
    try:
        key_of(new_base.server_key)
    except EngineError as error:
        raise Refusal("server_key_refused", str(error), field="server_key") from error
    return {
        "server_url": new_base.server_url,
        "server_model": new_base.server_model.strip(),
        "server_key": new_base.server_key,
    }


def _start(values: dict[str, Any], requested_by: User | None) -> BaseModelAddition:
    try:
        with transaction.atomic():
            addition = BaseModelAddition.objects.create(
                **values, created_by=requested_by, message="waiting for a worker"
            )
            details = {key: str(value) for key, value in values.items() if value and key != "name"}
            audit.record(action="base_model.add", subject=addition, actor=requested_by, details=details)
            send_after_commit(TaskName.DO_JOB, JobKind.BASE_MODEL, addition.pk)
    except IntegrityError:
        raise Refusal(
            "model_under_way",
            _("%(name)s is being added already: wait for it."),
            field="name",
            name=values["name"],
        ) from None
    return addition
