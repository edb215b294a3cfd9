"""Base models: requested, estimated, brought in, registered, chosen as the default, removed."""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from annotation.choices import JobState, SourceKind
from annotation.errors import NotAllowed, Refusal, Unavailable
from annotation.models import CompletionSource, User
from annotation.services import audit
from annotation.services.job_runs import run_job
from annotation.services.jobs import Heartbeat, send_after_commit, still_held, sweep, write
from training.choices import BaseOrigin, CheckpointKind, JobKind, TrainingTask
from training.contract.files import SOURCE_FILE
from training.contract.methods import Settings
from training.contract.methods.reward import RewardSettings
from training.engine import OPENAI, Engine, EngineError, ModelServerTransport, base_of, check_url, key_of
from training.files import shared
from training.files.hub import HubError, HubModel, HubUnreachableError, look_up
from training.models import BaseModel, BaseModelAddition, Checkpoint, validate_checkpoint_name
from training.recipe.recipe import PRESETS, Recipe
from training.selectors.base_models import uses_of_base
from training.services.chat_templates import check_template
from training.services.checkpoint_files import remove_folder
from training.services.runs.launcher import TIMED_OUT, refuse_failed, run_process, trainer_environment
from training.services.runs.memory import PROCESS_BYTES, Memory, Shape, dtype_in, memory_of, parameters_in

# ── Requests, registration, removal ──


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
    """Have a worker add a base model. A worker is woken after the commit.

    For superusers alone: it fills a disk or sends a key to a server. Refuses a name that is taken or not
    valid, a folder outside the allowed ones, a GGUF file, a licence that is not accepted, and a refused
    address.
    """
    if not requested_by.is_superuser:
        raise NotAllowed("administrator_changes_base_models", _("Only an administrator adds base models."))
    require_free_name(new_base.effective_name)
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
            send_after_commit(TrainingTask.DO_JOB, JobKind.BASE_MODEL, addition.pk)


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

    fields: of `BaseModel`; `provider`, `project` and those named `server_…` are its checkpoint's.
    """
    of_checkpoint = ("server_", "provider", "project")
    server = {key: fields.pop(key) for key in list(fields) if key.startswith(of_checkpoint)}
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


def require_free_name(name: str) -> None:
    """Refuse a name that is no model's, or that a model or an imported set has."""
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
            send_after_commit(TrainingTask.DO_JOB, JobKind.BASE_MODEL, addition.pk)
    except IntegrityError:
        raise Refusal(
            "model_under_way",
            _("%(name)s is being added already: wait for it."),
            field="name",
            name=values["name"],
        ) from None
    return addition


# ── Memory estimates ──


CACHE_TOKENS = 32768 + 16384
"""Places for keys and values of the model server: `cache_tokens` and `kept_tokens` of its limits."""
_PRECISIONS = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryEstimate:
    """Bytes of one use, by the precision of the frozen base."""

    name: str
    """Identifier: `serving`, or a method's preset."""
    title: str
    float32: int
    bfloat16: int
    full: int | None = None
    """Training every parameter instead of an adapter; None where there is no training."""


def estimates_of(base: BaseModel) -> list[MemoryEstimate]:
    """Return the memory estimates of a base model, by the formulas of the dry run; none before inspection."""
    if "shape" not in base.facts:
        return []
    shape, parameters = Shape(**base.facts["shape"]), int(base.facts["parameters"])
    serving = {name: serving_bytes(shape, parameters, size) for name, size in _PRECISIONS.items()}
    return [
        MemoryEstimate(name="serving", title="serving", **serving),
        *(_of_method(name, title, method, shape, parameters) for name, title, method in _methods()),
    ]


def serving_bytes(shape: Shape, parameters: int, weight_bytes: int) -> int:
    """Return the memory of the model server: weights, keys and values, and the process."""
    places = CACHE_TOKENS * 2 * shape.layers * shape.key_heads * shape.head_size
    return (parameters + places) * weight_bytes + PROCESS_BYTES


def _of_method(name: str, title: str, method: Settings, shape: Shape, parameters: int) -> MemoryEstimate:
    def memory(settings: Settings, weight_bytes: int) -> Memory:
        return memory_of(settings, shape, parameters=parameters, base_bytes=weight_bytes)

    whole = _without_adapter(method)
    return MemoryEstimate(
        name=name,
        title=title,
        **{precision: memory(method, size).total for precision, size in _PRECISIONS.items()},
        full=None if whole is None else memory(whole, 4).total,
    )


def _without_adapter(method: Settings) -> Settings | None:
    try:
        return dataclasses.replace(method, adapter="none")
    except (TypeError, ValueError):
        return None


@cache
def _methods() -> tuple[tuple[str, str, Settings], ...]:
    reward: RewardSettings = Recipe().reward
    presets = ((name, title, make()) for name, (title, make) in PRESETS.items())
    return (("reward", "reward model", reward), *presets)


# ── Files are gathered in a folder of their own, inspected, then moved at once ──


INSPECT_COMMAND: tuple[str, ...] = (sys.executable, "-m", "training.rlhf.model.inspection")
STARTER_COMMAND: tuple[str, ...] = (sys.executable, "-m", "training.rlhf.starter")
HUB_COMMAND: tuple[str, ...] = (sys.executable, "-m", "training.files.hub")
_HUB_AWAY = 75
_NETWORK = ("HF_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_WANTED = (".safetensors", ".json", ".txt", ".jinja", ".model")
_PIECE_BYTES = 16 * 1024**2
_INSPECTION_SECONDS = 15 * 60
"""Weights are mapped and the first layers alone computed: a model of any size takes a minute or two."""
_ROOM = 1.05
"""Free space for a download, as a multiple of its size."""


class DownloadCancelled(Refusal):
    """Somebody cancelled the addition."""


class _Beat(Heartbeat):
    """The heartbeat of an addition, which brings news of a cancel."""

    def _check(self) -> None:
        rows = BaseModelAddition.objects.filter(pk=self.job.pk)
        if rows.values_list("cancel_requested", flat=True).get():
            raise DownloadCancelled("base_cancelled", _("It was cancelled. What was downloaded is removed."))


def do_addition(pk: int) -> None:
    """Carry out an addition, unless another worker has it."""
    run_job(BaseModelAddition.objects.all(), pk, _do)


def sweep_additions() -> None:
    """Send a message for every addition that nobody works on; inspect bases whose files have come."""
    sweep(BaseModelAddition.objects.all(), TrainingTask.DO_JOB, JobKind.BASE_MODEL)
    waiting = BaseModel.objects.filter(files=[], additions=None).exclude(origin=BaseOrigin.SERVER)
    for base in waiting:
        if _is_complete(base.path):
            with contextlib.suppress(Refusal):
                inspect_again(base=base, requested_by=None)


def _do(addition: BaseModelAddition, _heartbeat: Heartbeat) -> str:
    beat = _Beat(addition)
    try:
        beat.write()
        if addition.base is not None:
            return _inspect(addition.base, beat)
        if addition.origin == BaseOrigin.SERVER:
            return _add_served(addition, beat)
        return _add_files(addition, beat)
    except Unavailable:
        # What was downloaded stays: the next try goes on with it.
        raise
    except (Refusal, OSError):
        shutil.rmtree(addition.staging, ignore_errors=True)
        raise


# ── Files ─────────────────────────────────────────────────────────────────────────────


def _add_files(addition: BaseModelAddition, beat: Heartbeat) -> str:
    target = Path(settings.RONDO_MODELS) / addition.name
    is_there = addition.origin == BaseOrigin.STARTER or Path(addition.folder) == Path(
        os.path.realpath(target)
    )
    if target.exists() and not is_there:
        raise Refusal(
            "target_exists",
            _("%(target)s is there already. Move it away, or add it as that folder."),
            target=target,
        )
    staged = target if is_there else addition.staging / addition.name
    gather = {BaseOrigin.STARTER: _starter, BaseOrigin.FOLDER: _taken_over, BaseOrigin.HUB: _downloaded}
    gather[BaseOrigin(addition.origin)](addition, staged, beat)
    facts = _facts_of(staged, beat)
    files = _digests(staged, beat)
    if not is_there:
        os.rename(staged, target)
    shutil.rmtree(addition.staging, ignore_errors=True)
    try:
        shared.both_have(target)
        with still_held(addition):
            base = register_base_model(
                name=addition.name,
                origin=BaseOrigin(addition.origin),
                repository=addition.repository,
                revision=addition.revision,
                licence=addition.licence,
                facts=facts,
                files=files,
                tokenizer_digest=_tokenizer_digest(files),
                created_by=addition.created_by,
            )
            write(addition, base=base)
    except Exception:
        if not is_there:
            # No row names it: it would be in the way of the next try.
            shutil.rmtree(target, ignore_errors=True)
        raise
    return "added"


def _starter(addition: BaseModelAddition, staged: Path, beat: Heartbeat) -> None:
    """Fetch the starter package; it has a lock and a folder for unfinished files of its own."""
    environment = {**_environment(), "RONDO_STARTER_MODEL": os.environ.get("RONDO_STARTER_MODEL", "")}
    progress = staged.parent / "progress.json"

    def tell() -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            report = json.loads(progress.read_text(encoding="utf-8"))
            beat(current=int(report["done"]), total=int(report["total"]), message=str(report["message"]))
            return
        beat(message=f"fetching {STARTER_PACKAGE}")

    ended = run_process((*STARTER_COMMAND, "--into", str(staged.parent)), environment=environment, beat=tell)
    refuse_failed(ended.code, ended.last_line)


def _taken_over(addition: BaseModelAddition, staged: Path, beat: Heartbeat) -> None:
    """Take over the files of a folder on the server: by hard links where the disk allows, else as copies."""
    folder = allowed_folder(addition.folder)
    if not (folder / "config.json").is_file():
        raise Refusal(
            "no_model_in_folder",
            _("%(folder)s: no model is here (config.json is missing). Name the folder that has one."),
            folder=folder,
        )
    if folder == Path(os.path.realpath(staged)):
        return
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    files = {path.name: allowed_file(path) for path in sorted(folder.iterdir()) if _is_wanted(path)}
    total, done = sum(path.stat().st_size for path in files.values()), 0
    for name, file in files.items():
        beat(current=done, total=total, message=f"taking over {name}")
        try:
            os.link(file, staged / name)
            done += file.stat().st_size
        except OSError:
            # Another disk, or a file of somebody else's.
            _require_room(file.stat().st_size, staged, what=name)
            with (staged / name).open("wb") as stream:
                for piece in _pieces(file):
                    stream.write(piece)
                    done += len(piece)
                    beat(current=done, total=total)


def _is_wanted(file: Path) -> bool:
    return file.is_file() and file.suffix in _WANTED and not file.name.startswith("consolidated")


def _require_room(size: int, folder: Path, *, what: str, held: int = 0) -> None:
    free = shutil.disk_usage(folder).free + held
    if free < size * _ROOM:
        raise Refusal(
            "too_little_space",
            _(
                "%(what)s has %(size).1f GiB, and %(free).1f GiB are free in %(folder)s. Free "
                "some space, then add it again."
            ),
            what=what,
            size=size / 2**30,
            free=free / 2**30,
            folder=settings.RONDO_MODELS,
        )


def _downloaded(addition: BaseModelAddition, staged: Path, beat: Heartbeat) -> None:
    """Download one commit of a model from the hub: what refuses it first, then the weights."""
    try:
        model = look_up(addition.repository, revision=addition.revision, token=settings.RONDO_HUB_TOKEN)
    except HubUnreachableError as error:
        raise Unavailable("hub_not_answering", str(error)) from error
    except HubError as error:
        raise Refusal("hub_refused", str(error)) from error
    staged.mkdir(parents=True, exist_ok=True)
    _require_room(model.size, staged, what=model.repository, held=_bytes_in(staged))
    command = (*HUB_COMMAND, model.repository, model.revision, "--into", str(staged))
    environment = {**_environment(), "RONDO_HUB_TOKEN": settings.RONDO_HUB_TOKEN}

    def tell() -> None:
        done = min(model.size, _bytes_in(staged))
        beat(current=done, total=model.size, message=f"downloading {model.repository}")

    small = (*command, "--only", *model.small_files)
    for arguments in (small, command):
        ended = run_process(arguments, environment=environment, beat=tell)
        if ended.code == _HUB_AWAY:
            raise Unavailable("hub_not_answering", ended.last_line)
        refuse_failed(ended.code, ended.last_line)
        if arguments is small:
            _inspect_folder(staged, beat, with_weights=False)
    shutil.rmtree(staged / ".cache", ignore_errors=True)
    for file in staged.iterdir():
        file.chmod(0o644)


# ── Inspection ────────────────────────────────────────────────────────────────────────


def _inspect(base: BaseModel, beat: Heartbeat) -> str:
    if not _is_complete(base.path):
        raise Refusal(
            "model_incomplete",
            _("%(folder)s holds no complete model. Restore its files, then inspect it again."),
            folder=base.path,
        )
    facts, files = _facts_of(base.path, beat), _digests(base.path, beat)
    with still_held(beat.job):
        BaseModel.objects.filter(pk=base.pk).update(
            facts=facts, files=files, tokenizer_digest=_tokenizer_digest(files)
        )
    return "inspected"


def _facts_of(folder: Path, beat: Heartbeat) -> dict[str, Any]:
    """Return the facts of the model in a folder. Refuses what cannot be trained or served."""
    facts = _inspect_folder(folder, beat, with_weights=True)
    shape = Shape.read(folder)
    parameters = parameters_in(folder)
    if shape is None or not parameters:
        raise Refusal(
            "model_sizes_not_readable",
            _("%(folder)s: the sizes in config.json or in the weights cannot be read. Fetch it again."),
            folder=folder,
        )
    # What the files hold, whatever the configuration says.
    dtype = dtype_in(folder) or facts["dtype"]
    return {**facts, "parameters": parameters, "dtype": dtype, "shape": asdict(shape), **_gguf_facts(folder)}


def _gguf_facts(folder: Path) -> dict[str, Any]:
    """Return the GGUF file that 1.0 converted a model from; nothing of any other."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        source = json.loads((folder / SOURCE_FILE).read_text(encoding="utf-8"))
        types = ", ".join(f"{count} × {name}" for name, count in source["types"].items())
        return {"gguf": {"file": source["gguf_file"], "sha256": source["gguf_sha256"], "types": types}}
    return {}


def _inspect_folder(folder: Path, beat: Heartbeat, *, with_weights: bool) -> dict[str, Any]:
    check = check_template(folder)
    if not check.is_within_bounds:
        raise Refusal(
            "model_not_usable",
            _("%(name)s cannot be used: %(reason)s. Choose another model."),
            name=folder.name,
            reason=check.reason,
        )
    command = (*INSPECT_COMMAND, str(folder), *(() if with_weights else ("--without-weights",)))
    ended = run_process(
        command,
        environment=_environment(),
        beat=lambda: beat(current=0, total=0, message="inspecting the base model"),
        seconds=_INSPECTION_SECONDS,
    )
    if ended.code == TIMED_OUT:
        raise Refusal(
            "inspection_too_slow",
            _(
                "The inspection of %(name)s took more than %(minutes)s minutes. Check the "
                "model’s files and its chat template."
            ),
            name=folder.name,
            minutes=_INSPECTION_SECONDS // 60,
        )
    refuse_failed(ended.code, ended.last_line.replace(f"{folder}: ", ""))
    try:
        facts: dict[str, Any] = json.loads(ended.output)
    except ValueError as error:
        raise Refusal(
            "inspection_failed",
            _("The inspection of %(name)s said nothing that can be read (%(error)s)."),
            name=folder.name,
            error=error,
        ) from error
    return facts


def _digests(folder: Path, beat: Heartbeat) -> list[dict[str, Any]]:
    """Return name, size and SHA-256 of every file."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
    total, done = sum(path.stat().st_size for path in files), 0
    entries = []
    for file in files:
        digest = hashlib.sha256()
        for piece in _pieces(file):
            digest.update(piece)
            done += len(piece)
            beat(current=done, total=total, message=f"computing the digest of {file.name}")
        entries.append({"name": file.name, "size": file.stat().st_size, "sha256": digest.hexdigest()})
    return entries


def _pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while piece := stream.read(_PIECE_BYTES):
            yield piece


def _tokenizer_digest(files: list[dict[str, Any]]) -> str:
    return next((file["sha256"] for file in files if file["name"] == "tokenizer.json"), "")


# ── Servers ───────────────────────────────────────────────────────────────────────────


def _add_served(addition: BaseModelAddition, beat: Heartbeat) -> str:
    """Write down a model of another server, which must answer and know it."""
    beat(message=f"asking {addition.server_url}")
    try:
        check_url(addition.server_url)
        with Engine(
            url=base_of(addition.server_url),
            key=key_of(addition.server_key),
            transport=ModelServerTransport(),
            dialect=OPENAI,
        ) as engine:
            known = engine.models()
    except EngineError as error:
        raise Refusal(
            "server_does_not_answer",
            _("%(server)s does not serve the model: %(error)s"),
            server=addition.server_url,
            error=error,
        ) from error
    if addition.server_model not in known:
        listed = ", ".join(known[:5]) or "none"
        raise Refusal(
            "unknown_server_model",
            _("%(server)s has no model %(model)s. It serves: %(listed)s. Correct the name."),
            server=addition.server_url,
            model=addition.server_model,
            listed=listed,
        )
    with still_held(addition):
        base = register_base_model(
            name=addition.name,
            origin=BaseOrigin.SERVER,
            created_by=addition.created_by,
            server_url=addition.server_url,
            server_model=addition.server_model,
            server_key=addition.server_key,
        )
        write(addition, base=base)
    return "added"


# ── Helpers ───────────────────────────────────────────────────────────────────────────


def _environment() -> dict[str, str]:
    network = {name: os.environ[name] for name in _NETWORK if name in os.environ}
    return {**trainer_environment(os.environ), **network}


def _bytes_in(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def _is_complete(folder: Path) -> bool:
    named = ((folder / name).is_file() for name in ("config.json", "tokenizer.json"))
    return all(named) and any(folder.glob("*.safetensors"))
