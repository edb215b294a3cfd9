"""Files of this machine, and those of the store that several machines share.

Below RONDO_HOME every machine has its copy. Finished files are sent to the store, missing ones fetched from
it. Without a store nothing here has an effect.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings
from django.utils.translation import gettext as _

from annotation.errors import Refusal, Unavailable
from annotation.exchange.uploads import UploadedFiles
from training.contract.run import (
    CANCEL_FILE,
    CHECKPOINT_FOLDER,
    LOCK_FILE,
    OUTPUT_FILE,
    STATE_FOLDER,
    is_locked_here,
)
from training.models import Run
from training.store import NotInStoreError, Store, StoreError, StoreUnreachableError

logger = logging.getLogger(__name__)


class StoreRefusal(Refusal):
    """A wrong reply of the store."""


class StoreAway(StoreRefusal, Unavailable):
    """The store does not respond; retrying may help. Local files stay as they are."""


def shared() -> Store | None:
    """Return the store that machines share; None without one."""
    url: str = settings.RONDO_STORE_URL
    return _opened(url) if url else None


@functools.cache
def _opened(url: str) -> Store:
    return Store(url)


@contextmanager
def translate_store_errors() -> Iterator[None]:
    """Raise errors of the store as refusals."""
    try:
        yield
    except StoreUnreachableError as error:
        raise StoreAway("store_not_answering", str(error)) from error
    except StoreError as error:
        raise StoreRefusal("store_refused", str(error)) from error


def key_of(path: Path) -> tuple[str, str]:
    """Return a path's key in the store: the folder that is stored whole, and the path within it."""
    parts = path.relative_to(settings.RONDO_HOME).parts
    return "/".join(parts[:2]), "/".join(parts[2:])


def publish(
    folder: Path, *, left_out: Sequence[str] = (), still_ours: Callable[[], object] = lambda: None
) -> None:
    """Send a folder, or one file, to the store in one piece."""
    if store := shared():
        with translate_store_errors():
            store.publish(key_of(folder)[0], folder, left_out=left_out, still_ours=still_ours)


def fetched(folder: Path) -> Path:
    """Return the folder, fetched from the store if missing here; its path even if it is nowhere.

    Only for folders that never change.
    """
    if (store := shared()) and not folder.exists():
        with translate_store_errors():
            try:
                store.fetch(key_of(folder)[0], folder)
            except NotInStoreError:
                logger.info("%s is neither here nor in the store", folder)
    return folder


def both_have(folder: Path) -> Path:
    """Copy a folder to wherever it is missing, here or the store: for a base model added by a user."""
    store = shared()
    if store is None:
        return folder
    if not folder.exists():
        return fetched(folder)
    try:
        store.offer(key_of(folder)[0], folder)
    except StoreUnreachableError as error:
        raise StoreAway("store_not_answering", str(error)) from error
    except StoreError as error:
        # Only machines that lack it need it there, and they report that.
        logger.warning("%s", error)
    return folder


def forget(path: Path) -> None:
    """Remove a folder, or a part of a run's folder, from the store. Logged if the store is away."""
    if store := shared():
        key, inside = key_of(path)
        try:
            store.remove(key, inside=inside)
        except StoreError as error:
            logger.error("%s stays in the store for now: %s", key, error)


def size_in_store(path: Path) -> int:
    """Return the bytes of a folder or part in the store; 0 if missing or without a store."""
    if (store := shared()) is None:
        return 0
    key, inside = key_of(path)
    with translate_store_errors():
        listing = store.listing(key)
    files = listing.files.items() if listing else ()
    return sum(entry.size for name, entry in files if not inside or name.startswith(f"{inside}/"))


# ── Uploaded files in the store that workers share: received by one host, imported by another ──


class SharedUploads(UploadedFiles):
    """Uploads in the store, with a local copy."""

    def keep(self, path: Path) -> None:
        """Send the file. Raises if the store refuses it: then nothing was received."""
        publish(path)

    def here(self, path: Path) -> Path:
        """Fetch the file if it is missing here."""
        return fetched(path)

    def remove(self, path: Path) -> None:
        """Remove the file here and in the store."""
        super().remove(path)
        forget(path)


# Folders of runs that another machine's worker may write, as the web and the next worker read them.

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
