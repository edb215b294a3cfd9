"""Checkpoints leave the house: as a folder that others load without Rondo, fetched or pushed to a hub."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.models import User
from annotation.services import audit
from annotation.services.job_runs import call_with_heartbeat, run_job
from annotation.services.jobs import Heartbeat, send_after_commit, sweep, write
from training.choices import CheckpointKind, JobKind, TrainingTask
from training.contract.checkpoint import CHECKPOINT_NAME
from training.figures.model_card import model_card
from training.files import shared
from training.models import Checkpoint, CheckpointExport
from training.selectors.checkpoints import card_of
from training.services.checkpoint_files import require_intact
from training.services.runs.launcher import refuse_failed, trainer_environment

EXPORT_COMMAND: tuple[str, ...] = (sys.executable, "-m", "training.rlhf.export")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_POLL_SECONDS = 0.5
_MOST_CHARACTERS = 2000


def hub_is_set() -> bool:
    """Return whether this installation can push checkpoints."""
    return bool(settings.RONDO_HUB_TOKEN)


def request_export(
    *,
    checkpoint: Checkpoint,
    merged: bool,
    requested_by: User,
    repository: str = "",
    private: bool = True,
) -> CheckpointExport:
    """Have a worker write a checkpoint as a folder, and push it where `repository` names one.

    Refuses a checkpoint without files, one of another server, a starter model, a repository of no valid name,
    a push without a token, and a second one while the same goes on. A worker is woken after the commit.
    """
    if checkpoint.kind == CheckpointKind.STARTER:
        raise Refusal(
            "base_model_not_exported",
            _("%(checkpoint)s is an unchanged base model. Fetch it from its source."),
            checkpoint=checkpoint,
        )
    if checkpoint.files_deleted_at or checkpoint.server_url:
        raise Refusal(
            "model_has_no_files",
            _("%(checkpoint)s has no files here: nothing can be exported."),
            checkpoint=checkpoint,
        )
    if repository and not _REPOSITORY.fullmatch(repository):
        raise Refusal(
            "invalid_repository",
            _("Name the repository as OWNER/NAME, in letters, digits, dots and dashes."),
            field="repository",
        )
    if repository and not hub_is_set():
        raise Refusal(
            "hub_not_set",
            _("No hub is set: put a token that may write into RONDO_HUB_TOKEN, then restart Rondo."),
        )
    try:
        with transaction.atomic():
            export = CheckpointExport.objects.create(
                checkpoint=checkpoint,
                merged=merged,
                repository=repository,
                private=private,
                created_by=requested_by,
                message="waiting for a worker",
            )
            audit.record(
                action="checkpoint.push" if repository else "checkpoint.export",
                subject=checkpoint,
                actor=requested_by,
                project=checkpoint.project,
                details={"merged": merged, **({"repository": repository} if repository else {})},
            )
            send_after_commit(TrainingTask.DO_JOB, JobKind.EXPORT, export.pk)
    except IntegrityError:
        raise Refusal("export_under_way", _("This export is running already. Wait for it.")) from None
    return export


def do_export(pk: int) -> None:
    """Carry out an export, unless another worker has it."""
    run_job(CheckpointExport.objects.all(), pk, _export)


def sweep_exports() -> None:
    """Send a message for every export that nobody works on."""
    sweep(CheckpointExport.objects.all(), TrainingTask.DO_JOB, JobKind.EXPORT)


def _export(export: CheckpointExport, heartbeat: Heartbeat) -> str:
    checkpoint = export.checkpoint
    heartbeat(message="checking the files")
    require_intact(checkpoint)
    home = Path(settings.RONDO_HOME) / "exports" / str(export.pk)
    # An earlier worker's process may still write here: each has a folder of its own.
    place = home / (export.worker.rpartition(":")[2] or "alone")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    card = place / "card.md"
    card.write_text(model_card(card_of(checkpoint), merged=export.merged), encoding="utf-8")
    out = place / checkpoint.name
    _run_process(export, out, card, heartbeat)
    if export.repository:
        try:
            url = _push(export, out, heartbeat)
        finally:
            shutil.rmtree(home, ignore_errors=True)
        write(export, url=url)
        return f"pushed to {export.repository}"
    shared.publish(out)
    relative = str(out.relative_to(settings.RONDO_HOME))
    write(export, folder=relative)
    return "ready"


def _run_process(export: CheckpointExport, out: Path, card: Path, heartbeat: Heartbeat) -> None:
    """Have a process with torch write the folder; progress is what it has written so far."""
    base = shared.both_have(Path(settings.RONDO_MODELS) / export.checkpoint.base_model)
    command = [*EXPORT_COMMAND, str(export.checkpoint.path), "--base", str(base), "--out", str(out)]
    command += ["--card", str(card), *(["--merged"] if export.merged else [])]
    total = _expected_bytes(export, base)
    output_file = out.with_name("output.txt")
    with output_file.open("wb") as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=settings.BASE_DIR,
            env=trainer_environment(os.environ),
            start_new_session=True,
        )
    try:
        while True:
            written = _bytes_in(out.with_name(f".{out.name}.partial"))
            message = "merging the weights" if export.merged else "writing the adapter"
            heartbeat(current=min(written, total), total=total, message=message)
            try:
                process.wait(timeout=_POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                continue
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode != 0:
        output = output_file.read_text(encoding="utf-8", errors="replace").strip()[-_MOST_CHARACTERS:]
        refuse_failed(process.returncode, output)


def _push(export: CheckpointExport, folder: Path, heartbeat: Heartbeat) -> str:
    """Upload a folder; the address of what was made. The token goes to the hub and nowhere else."""
    token: str = settings.RONDO_HUB_TOKEN
    if not token:
        raise Refusal(
            "hub_not_set",
            _("No hub is set: put a token that may write into RONDO_HUB_TOKEN, then restart Rondo."),
        )
    return call_with_heartbeat(
        lambda: _upload(export, folder, token),
        lambda: heartbeat(message=f"pushing to {export.repository}"),
    )


def _upload(export: CheckpointExport, folder: Path, token: str) -> str:
    # Imported late: the web process has no use for a client of the hub.
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    api: Any = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=token)
    try:
        made = api.create_repo(export.repository, private=export.private, exist_ok=True)
        api.upload_folder(
            repo_id=export.repository,
            folder_path=str(folder),
            commit_message=f"{export.checkpoint.name} from Rondo, manifest {export.checkpoint.digest[:12]}",
        )
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        lines = str(error).replace(token, "[token]").strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise Refusal("hub_refused", _("The hub refused: %(reason)s"), reason=reason) from None
    return str(made)


def _expected_bytes(export: CheckpointExport, base: Path) -> int:
    """About as much as the folder will hold."""
    origin = base if export.merged else export.checkpoint.path
    return max(1, _bytes_in(origin))


def _bytes_in(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    except OSError:
        return 0


def archive_name(export: CheckpointExport) -> str:
    """Under which name a browser keeps it; a checkpoint's name is plain."""
    assert CHECKPOINT_NAME.fullmatch(export.checkpoint.name)  # noqa: S101 - so say its validators
    return f"{export.checkpoint.name}-{'merged' if export.merged else 'adapter'}"
