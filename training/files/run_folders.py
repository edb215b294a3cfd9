"""Folders of runs that another machine's worker may write, as the web and the next worker read them."""

import logging
import time
from pathlib import Path

from django.utils.translation import gettext as _

from training.contract import (
    CANCEL_FILE,
    CHECKPOINT_FOLDER,
    LOCK_FILE,
    OUTPUT_FILE,
    STATE_FOLDER,
    is_locked_here,
)
from training.files.shared import StoreAway, key_of, shared, translate_store_errors
from training.models import Run
from training.store import StoreError

logger = logging.getLogger(__name__)

OWN_FILES = (LOCK_FILE, CANCEL_FILE, OUTPUT_FILE, "cache")
"""Files of a run's folder that are local or can be recomputed."""
_NOT_FOR_PAGES = (STATE_FOLDER, CHECKPOINT_FOLDER)
_LOOK_EVERY_SECONDS = 2.0
_LOOK_AGAIN_SECONDS = 30.0
"""Pause after the store did not respond: a page shows the local files instead of waiting each time."""

_next_look: dict[str, float] = {}
"""Time, by folder, of this process's next look into the store (monotonic)."""


def folder_of(run: Run, *, whole: bool = False) -> Path:
    """Return a run's folder, updated from the store every few seconds; `whole`: state and checkpoint too.

    Never raises for a store error: a page then shows the local files.
    """
    if (store := shared()) is None:
        return run.path
    key, now = key_of(run.path)[0], time.monotonic()
    if not whole and now < _next_look.get(key, 0):
        return run.path
    _next_look[key] = now + _LOOK_EVERY_SECONDS
    if is_locked_here(run.path):
        # A trainer writes here: the store has nothing newer.
        return run.path
    try:
        store.refresh(key, run.path, left_out=() if whole else _NOT_FOR_PAGES, local=OWN_FILES)
    except StoreError as error:
        logger.warning("%s: %s", run, error)
        _next_look[key] = now + _LOOK_AGAIN_SECONDS
    return run.path


def bring_run(folder: Path, *, but: tuple[str, ...] = ()) -> None:
    """Fetch another worker's files of a run, except the names in `but`; files as new as the store's stay.

    Raises `StoreRefusal`, also while a trainer still works in the folder here.
    """
    store = shared()
    if store is None:
        return
    if is_locked_here(folder):
        raise TrainerStillWorks(
            "trainer_still_works",
            _("%(folder)s: an earlier trainer has not ended yet; it is tried again."),
            folder=folder,
        )
    with translate_store_errors():
        # A page may be fetching it now, and training needs all of it.
        store.refresh(key_of(folder)[0], folder, left_out=but, local=OWN_FILES, wait=True)


class TrainerStillWorks(StoreAway):
    """An earlier trainer is still saving and ending in the folder."""
