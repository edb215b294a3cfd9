"""The files of this machine, and those of the store that several machines share.

Below RONDO_HOME every machine has its own copy. What is finished here goes to the store, what is missing here
comes from there. Where no store is set, nothing here does anything.
"""

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings

from annotation.errors import Refusal
from training.store import NotInStoreError, Store, StoreError, StoreUnreachableError

logger = logging.getLogger(__name__)


class StoreRefusal(Refusal):
    """The store gave or took something not as it should."""


class StoreAway(StoreRefusal):
    """The store does not answer; the same may be tried again. What is here stays as it is."""


def shared() -> Store | None:
    """The store that machines share; None where this one keeps its files to itself."""
    url: str = settings.RONDO_STORE_URL
    return _opened(url) if url else None


@functools.cache
def _opened(url: str) -> Store:
    return Store(url)


@contextmanager
def told() -> Iterator[None]:
    """What goes wrong with the store, as a refusal."""
    try:
        yield
    except StoreUnreachableError as error:
        raise StoreAway(str(error)) from error
    except StoreError as error:
        raise StoreRefusal(str(error)) from error


def key_of(path: Path) -> tuple[str, str]:
    """What a path below RONDO_HOME is called in the store: the folder that is kept whole, and where in it."""
    parts = path.relative_to(settings.RONDO_HOME).parts
    return "/".join(parts[:2]), "/".join(parts[2:])


def publish(
    folder: Path, *, left_out: Sequence[str] = (), still_ours: Callable[[], object] = lambda: None
) -> None:
    """Send a folder, or one file, to the store, as the whole that others see."""
    if store := shared():
        with told():
            store.publish(key_of(folder)[0], folder, left_out=left_out, still_ours=still_ours)


def fetched(folder: Path) -> Path:
    """The folder, brought from the store where it is not here; where it is nowhere, its path all the same.

    For what never changes once it is there.
    """
    if (store := shared()) and not folder.exists():
        with told():
            try:
                store.fetch(key_of(folder)[0], folder)
            except NotInStoreError:
                logger.info("%s is neither here nor in the store", folder)
    return folder


def both_have(folder: Path) -> Path:
    """The folder here and in the store, whichever of them lacked it: a base model that somebody brought."""
    store = shared()
    if store is None:
        return folder
    if not folder.exists():
        return fetched(folder)
    try:
        store.offer(key_of(folder)[0], folder)
    except StoreUnreachableError as error:
        raise StoreAway(str(error)) from error
    except StoreError as error:
        # Only machines that lack it need it there, and they will say so.
        logger.warning("%s", error)
    return folder


def forget(path: Path) -> None:
    """Remove a folder from the store; of a run's folder also a part alone. Logged where the store is away."""
    if store := shared():
        key, inside = key_of(path)
        try:
            store.remove(key, inside=inside)
        except StoreError as error:
            logger.error("%s stays in the store for now: %s", key, error)


def size_in_store(path: Path) -> int:
    """Bytes of a folder in the store, or of a part of it; 0 without a store and where there is nothing."""
    if (store := shared()) is None:
        return 0
    key, inside = key_of(path)
    with told():
        listing = store.listing(key)
    files = listing.files.items() if listing else ()
    return sum(entry.size for name, entry in files if not inside or name.startswith(f"{inside}/"))
