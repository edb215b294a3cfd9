"""Folders of runs that another machine's worker may write: what the web and the next worker see of them."""

import logging
import time
from pathlib import Path

from training.choices import RunState
from training.contract import CANCEL_FILE, CHECKPOINT_FOLDER, LOCK_FILE, STATE_FOLDER, is_locked_here
from training.files import StoreAway, key_of, shared, told
from training.launcher import OUTPUT_FILE
from training.models import Run
from training.store import StoreError

logger = logging.getLogger(__name__)

OWN_FILES = (LOCK_FILE, CANCEL_FILE, OUTPUT_FILE, "cache")
"""Of a run's folder: marks between the processes of one machine, and what can be computed again."""
_NOT_FOR_PAGES = (STATE_FOLDER, CHECKPOINT_FOLDER)
_LOOK_EVERY_SECONDS = 2.0
_LOOK_AGAIN_SECONDS = 30.0
"""After the store did not answer: a page shows what is here, and does not wait each time."""
_SETTLED = (RunState.FINISHED, RunState.FAILED, RunState.STOPPED)

_next_look: dict[str, float] = {}
"""By folder, when this process looks into the store again (monotonic)."""


def folder_of(run: Run, *, whole: bool = False) -> Path:
    """A run's folder with what the store holds of it, some seconds old; `whole`: state and checkpoint too.

    Never raises for the store's sake: a page then shows what is here.
    """
    if (store := shared()) is None:
        return run.path
    key, now = key_of(run.path)[0], time.monotonic()
    if not whole and now < _next_look.get(key, 0):
        return run.path
    _next_look[key] = now + _LOOK_EVERY_SECONDS
    if is_locked_here(run.path):
        # It writes here: nothing is newer.
        return run.path
    try:
        store.refresh(key, run.path, left_out=() if whole else _NOT_FOR_PAGES, kept=OWN_FILES)
    except StoreError as error:
        logger.warning("%s: %s", run, error)
        _next_look[key] = now + _LOOK_AGAIN_SECONDS
    return run.path


def bring_run(folder: Path, *, but: tuple[str, ...] = ()) -> None:
    """What another worker sent of a run comes here, but for the names in `but`; what is as new stays.

    Raises `StoreRefusal`, also while a trainer still works in the folder here.
    """
    store = shared()
    if store is None:
        return
    if is_locked_here(folder):
        raise TrainerStillWorks(f"{folder}: an earlier trainer has not ended yet; it is tried again.")
    with told():
        # A page may be fetching it at this moment: half of that is nothing to train from.
        store.refresh(key_of(folder)[0], folder, left_out=but, kept=OWN_FILES, wait=True)


class TrainerStillWorks(StoreAway):
    """An earlier trainer saves and ends in the folder."""
