"""Creation of a back-up: the database, then the files, then the manifest."""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection
from django.utils import timezone

from training.contract import write_atomically
from training.contract.files import FILE_MODE
from training.files.run_folders import OWN_FILES
from training.files.shared import shared
from training.services.runs.runs import version_of_rondo
from training.store import Entry, NotInStoreError, Store, files_below
from webapp.backup import databases
from webapp.backup.target import (
    ARCHIVE,
    BLOCK_BYTES,
    DATABASE,
    KINDS,
    SECRETS,
    BackupError,
    File,
    Manifest,
    Target,
    Writer,
)

STAMP_FILE = "backups.json"
"""Below RONDO_HOME: time and counts of the last back-up, for monitoring."""
_TRIES = 5

Content = Callable[[], Iterator[bytes]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """The result of a back-up."""

    name: str
    manifest: Manifest


class _ChangedError(Exception):
    """A folder changed while it was read."""


def make_backup(target: Target, *, models: bool = True, secrets: bool = False) -> Made:
    """Copy the database, then the files, into a target; the back-up exists once its manifest is written.

    models: include base models. secrets: include the secret key. People and workers may continue meanwhile.
    Raise `BackupError`, or `StoreError` if target or store fail; nothing of the back-up stays then.
    """
    target.make_private()
    now = timezone.now()
    with target.new_backup(now) as name:
        with target.writing(name, DATABASE) as database, databases.dumped() as dump:
            while data := dump.stream.read(BLOCK_BYTES):
                database.write(data)
        with target.writing(name, ARCHIVE) as archive:
            folders = _archive_files(archive, models=models, secrets=secrets)
        manifest = Manifest(
            time=now.isoformat(),
            commit=version_of_rondo(),
            vendor=connection.vendor,
            migrations=dump.migrations,
            rows=dump.rows,
            database=database.file,
            archive=archive.file,
            folders=folders,
        )
        target.write_manifest(name, manifest)
    _leave_stamp(target, name, manifest)
    return Made(name=name, manifest=manifest)


def _leave_stamp(target: Target, name: str, manifest: Manifest) -> None:
    stamp = {
        "time": manifest.time,
        "name": name,
        "target": target.address,
        "rows": sum(manifest.rows.values()),
        "files": len(manifest.paths),
        "bytes": manifest.size,
        "bytes_written": manifest.size,
    }
    path = Path(settings.RONDO_HOME) / STAMP_FILE
    write_atomically(path, json.dumps(stamp, indent=2) + "\n")
    path.chmod(FILE_MODE)


def _archive_files(writer: Writer, *, models: bool, secrets: bool) -> dict[str, dict[str, File]]:
    """Write every folder into the archive. Return their files, by path below RONDO_HOME."""
    store = shared()
    folders: dict[str, dict[str, File]] = {}
    stream: Any = writer
    with tarfile.open(fileobj=stream, mode="w|", bufsize=BLOCK_BYTES, format=tarfile.PAX_FORMAT) as archive:
        for kind in KINDS if models else KINDS[:-1]:
            there = set(store.names(kind)) if store else set()
            for name in sorted(there | _names_here(kind)):
                key = f"{kind}/{name}"
                files = _archive_folder(archive, key, store if name in there else None)
                if files is not None:
                    folders[key] = files
        path = Path(settings.RONDO_HOME) / SECRETS
        if secrets and path.is_file():
            folders[SECRETS] = {"": _archive_file(archive, SECRETS, path.stat().st_size, _read(path))}
    return folders


def _names_here(kind: str) -> set[str]:
    folder = Path(settings.RONDO_HOME) / kind
    if not folder.is_dir():
        return set()
    return {path.name for path in folder.iterdir() if not path.name.startswith(".") and not path.is_symlink()}


def _archive_folder(archive: tarfile.TarFile, key: str, store: Store | None) -> dict[str, File] | None:
    """Write a folder or an uploaded file; None if it was deleted meanwhile.

    A folder that changes is written again: of files of one name the last counts, and only what the manifest
    lists comes back.
    """
    for _ in range(_TRIES):
        try:
            contents = _contents_in_store(store, key) if store else _contents_here(key)
            if contents is None:
                return None
            files = {}
            for name, (size, content) in contents.items():
                files[name] = _archive_file(archive, f"{key}/{name}" if name else key, size, content)
            return files
        except (FileNotFoundError, _ChangedError):
            continue
    place = f"{key} changes in the store" if store else f"{Path(settings.RONDO_HOME) / key} changes"
    raise BackupError(f"{place} faster than it can be read; try again in a quieter moment.")


def _contents_here(key: str) -> dict[str, tuple[int, Content]] | None:
    folder = Path(settings.RONDO_HOME) / key
    if not folder.exists():
        return None
    left_out = OWN_FILES if key.startswith("runs/") else ()
    if folder.is_file():
        return {"": (folder.stat().st_size, _read(folder))}
    return {name: (path.stat().st_size, _read(path)) for name, path in files_below(folder, left_out=left_out)}


def _contents_in_store(store: Store, key: str) -> dict[str, tuple[int, Content]] | None:
    if (listing := store.listing(key)) is None:
        return None
    single = set(listing.files) == {key.partition("/")[2]}
    return {
        "" if single else name: (entry.size, _fetch(store, key, entry))
        for name, entry in listing.files.items()
    }


def _read(path: Path) -> Content:
    def content() -> Iterator[bytes]:
        with path.open("rb") as stream:
            while data := stream.read(BLOCK_BYTES):
                yield data

    return content


def _fetch(store: Store, key: str, entry: Entry) -> Content:
    def content() -> Iterator[bytes]:
        for piece in entry.pieces:
            try:
                data = store.piece(key, piece)
            except NotInStoreError as error:
                # Its writer published a newer version meanwhile.
                raise _ChangedError from error
            if hashlib.sha256(data).hexdigest() != piece:
                raise BackupError(
                    f"{key} is damaged in the store: `manage.py verify_checkpoints` says more. "
                    "Nothing was kept."
                )
            yield data

    return content


class _Exactly(io.RawIOBase):
    """The first `size` bytes of a content, with zeros for those that went away, as the archive expects."""

    def __init__(self, content: Iterator[bytes], size: int) -> None:
        self._content, self._left = content, size
        # A view: what is left of a block is not copied for each read.
        self._rest = memoryview(b"")
        self.digest = hashlib.sha256()
        self.is_short = False

    def read(self, size: int = -1) -> bytes:
        gathered = bytearray()
        wanted = min(size, self._left)
        while len(gathered) < wanted:
            self._rest = self._rest or memoryview(self._next())
            if not self._rest:
                self.is_short = True
                gathered += bytes(wanted - len(gathered))
                break
            taken, self._rest = self._rest[: wanted - len(gathered)], self._rest[wanted - len(gathered) :]
            gathered += taken
        self._left -= wanted
        self.digest.update(gathered)
        return bytes(gathered)

    def _next(self) -> bytes:
        try:
            return next(self._content, b"")
        except _ChangedError:
            return b""


def _archive_file(archive: tarfile.TarFile, path: str, size: int, content: Content) -> File:
    """Write a file. Raise `_ChangedError` where it became shorter, `FileNotFoundError` where it is gone."""
    member = tarfile.TarInfo(path)
    member.size, member.mode = size, FILE_MODE
    pieces = content()
    # Opened before the member's head is written: a file that is gone leaves nothing behind.
    first = next(pieces, b"") if size else b""
    stream = _Exactly(chain([first] if first else [], pieces), size)
    archive.addfile(member, stream)
    if stream.is_short:
        raise _ChangedError
    return File(size, stream.digest.hexdigest())
