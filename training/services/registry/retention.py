"""Retention of checkpoints and runs: expired files are deleted once a day."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.utils import timezone

from annotation.choices import JobState
from annotation.errors import Refusal
from annotation.services import audit
from training.choices import CheckpointKind, RunState
from training.contract import STATE_FOLDER
from training.files.shared import size_in_store
from training.models import Checkpoint, CheckpointExport, Run
from training.selectors.checkpoints import uses_of
from training.services.registry.registry import delete_files, remove_folder, sweep_store

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
