"""Files of a run that trains on a cluster: sent before it starts, read while it writes."""

import dataclasses
import logging
import os
import tempfile
from pathlib import Path, PurePosixPath

from django.conf import settings

from training.contract import CANCEL_FILE, CHECKPOINT_FOLDER, STATE_FOLDER, RunSpec, write_spec
from training.files import shared as shared_files
from training.files.run_folders import OWN_FILES, bring_run
from training.launchers.job_files import CANCELS, JobFile, write_job_file
from training.models import Run
from training.services.runs.launchers import cluster_place
from training.services.runs.run_files import checkpoints_of_run, spec_here
from training.store import StoreError

logger = logging.getLogger(__name__)


def prepare(run: Run, job: str) -> None:
    """Write what the nodes read, and have it in the store where there is one. Raises `StoreRefusal`.

    The folder's newest state is fetched first: the job before this one may have run anywhere.
    """
    if shared_files.shared() is not None:
        bring_run(run.path)
    run.path.mkdir(parents=True, exist_ok=True)
    needs = needs_of(run)
    write_spec(run.path, spec_there(run))
    trainer = tuple(settings.RONDO_TRAINER_COMMAND)
    uses_own_trainer = trainer == settings.RONDO_OWN_TRAINER
    write_job_file(
        run.path, JobFile(job=job, needs=tuple(needs), trainer=() if uses_own_trainer else trainer)
    )
    if shared_files.shared() is None:
        return
    for need in needs:
        if (folder := Path(settings.RONDO_HOME) / need).exists():
            # What is here alone; the nodes fetch the rest from the store themselves.
            shared_files.both_have(folder)
    shared_files.publish(run.path, left_out=OWN_FILES)


def needs_of(run: Run) -> list[str]:
    """Return the folders below RONDO_HOME that the run's trainer reads besides its own."""
    home = Path(settings.RONDO_HOME)
    base = Path(spec_here(run).base_model)
    folders = [base, run.snapshot.path, *checkpoints_of_run(run)]
    inside = [
        Path(os.path.normpath(folder)).relative_to(home) for folder in folders if _is_below(folder, home)
    ]
    # A checkpoint of a run comes with the run's folder.
    return sorted({"/".join(path.parts[:2]) for path in inside})


def spec_there(run: Run) -> RunSpec:
    """Return the run's spec with the paths that it has on the nodes."""
    spec = spec_here(run)
    return dataclasses.replace(
        spec, base_model=path_there(spec.base_model), parent=path_there(spec.parent) if spec.parent else None
    )


def path_there(path: str) -> str:
    """Return a path below RONDO_HOME as the nodes see it; any other is the same there."""
    home = Path(settings.RONDO_HOME)
    if not _is_below(Path(path), home):
        return path
    return str(PurePosixPath(cluster_place().home) / Path(path).relative_to(home))


def bring_news(run: Run, *, whole: bool = False) -> None:
    """Bring what the job wrote here; `whole`: its state and checkpoint, too. Without a store it is here.

    Raises `StoreRefusal` with `whole`; else a store that does not answer is asked again next time.
    """
    if (store := shared_files.shared()) is None:
        return
    if whole:
        bring_run(run.path)
        return
    try:
        key = shared_files.key_of(run.path)[0]
        store.refresh(key, run.path, left_out=(STATE_FOLDER, CHECKPOINT_FOLDER), local=OWN_FILES)
    except StoreError as error:
        logger.warning("%s: %s", run, error)


def ask_to_stop(run: Run, job: str) -> None:
    """Tell the job to save and stop: by a file in the shared folder, or by an entry in the store."""
    (run.path / CANCEL_FILE).touch()
    if (store := shared_files.shared()) is None:
        return
    with tempfile.NamedTemporaryFile(prefix="cancel-") as empty, shared_files.translate_store_errors():
        store.publish(f"{CANCELS}/{job}", Path(empty.name))


def tidy(run: Run, job: str) -> None:
    """Take the request to stop away, once the job has ended."""
    (run.path / CANCEL_FILE).unlink(missing_ok=True)
    if (store := shared_files.shared()) is not None:
        try:
            if store.listing(f"{CANCELS}/{job}") is not None:
                store.remove(f"{CANCELS}/{job}")
        except StoreError as error:
            logger.warning("%s: %s", run, error)


def _is_below(path: Path, home: Path) -> bool:
    return Path(os.path.normpath(path)).is_relative_to(home)
