"""The files of a back-up: local ones, and those of the shared store."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings

from training.files.run_folders import OWN_FILES
from training.files.shared import shared
from training.store import Entry, Listing, NotInStoreError, Store
from training.store.listings import files_below
from webapp.backup.errors import BackupError
from webapp.backup.target import Target

KINDS = ("snapshots", "checkpoints", "runs", "imports", "models")
SECRETS = "secret_key"
"""The key that encrypts second factors in the database."""
_TRIES = 5


def copied(target: Target, *, models: bool, secrets: bool) -> Iterator[tuple[str, Listing]]:
    """Copy every folder into the target; yield each with its path below RONDO_HOME."""
    store = shared()
    for kind in KINDS if models else KINDS[:-1]:
        there = set(store.names(kind)) if store else set()
        for name in sorted(there | _names_here(kind)):
            key = f"{kind}/{name}"
            listing = _from_store(store, key, target) if store and name in there else _from_here(key, target)
            if listing is not None:
                yield key, listing
    path = Path(settings.RONDO_HOME) / SECRETS
    if secrets and path.is_file():
        with path.open("rb") as stream:
            yield SECRETS, Listing({SECRETS: target.put(stream)})


def _names_here(kind: str) -> set[str]:
    folder = Path(settings.RONDO_HOME) / kind
    if not folder.is_dir():
        return set()
    return {path.name for path in folder.iterdir() if not path.name.startswith(".") and not path.is_symlink()}


def _from_here(key: str, target: Target) -> Listing | None:
    """Copy a folder or an uploaded file; None if it was deleted meanwhile. Retry if a run changes it."""
    folder = Path(settings.RONDO_HOME) / key
    left_out = OWN_FILES if key.startswith("runs/") else ()
    for _ in range(_TRIES):
        entries: dict[str, Entry] = {}
        try:
            for name, path in files_below(folder, left_out=left_out):
                with path.open("rb") as stream:
                    entries[name] = target.put(stream, size=path.stat().st_size)
        except FileNotFoundError:
            continue
        return Listing(entries) if folder.exists() else None
    raise BackupError(f"{folder} changes faster than it can be read; try again in a quieter moment.")


def _from_store(store: Store, key: str, target: Target) -> Listing | None:
    """Copy a folder of the store; pieces that the target has are not fetched."""
    for _ in range(_TRIES):
        if (listing := store.listing(key)) is None:
            return None
        try:
            for entry in listing.files.values():
                for piece, size in zip(entry.pieces, entry.sizes(), strict=True):
                    if not target.has(piece, size):
                        _copied_piece(store, key, piece, target)
        except NotInStoreError:
            # Its writer published a newer version meanwhile.
            continue
        return listing
    raise BackupError(
        f"{key} changes in the store faster than it can be read; try again in a quieter moment."
    )


def _copied_piece(store: Store, key: str, piece: str, target: Target) -> None:
    data = store.piece(key, piece)
    if hashlib.sha256(data).hexdigest() != piece:
        raise BackupError(
            f"{key} is damaged in the store: `manage.py verify_checkpoints` says more. Nothing was kept."
        )
    target.put_piece(data)
