"""Back-ups: the database and the files below RONDO_HOME, in any place that fsspec supports.

    archives/TIME/database        what pg_dump or SQLite's back-up wrote
    archives/TIME/files.tar       the files, by their path below RONDO_HOME
    archives/TIME/manifest.json   size and SHA-256 of everything; written last

**The database is copied first, the files after it.** A file is created before the row that refers to it and
deleted after that row, so every file that the copied rows refer to still exists. In the other order, a
checkpoint registered in between would have a row and no files. Files written after the database copy are
included and harmless. Only files deleted during these minutes may be missing: `manage.py verify_checkpoints`
names them.

django-dbbackup copies the database and the media files by two commands. Rondo needs one restorable point of
both.
"""

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.utils import timezone

from training.contract.files import FILE_MODE, write_atomically
from training.files.shared import OWN_FILES, shared
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
    BackupManifest,
    BackupWriter,
    File,
    Target,
    members,
)

# Creation of a back-up: the database, then the files, then the manifest.

STAMP_FILE = "backups.json"
"""Below RONDO_HOME: time and counts of the last back-up, for monitoring."""
_TRIES = 5

Content = Callable[[], Iterator[bytes]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """The result of a back-up."""

    name: str
    manifest: BackupManifest


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
        manifest = BackupManifest(
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


def _leave_stamp(target: Target, name: str, manifest: BackupManifest) -> None:
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


def _archive_files(writer: BackupWriter, *, models: bool, secrets: bool) -> dict[str, dict[str, File]]:
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


# Restore of a back-up: check everything, then write the files, the database last.


def restore_backup(
    target: Target,
    name: str = "",
    *,
    force: bool = False,
    report: Callable[[str], object] = lambda words: None,
) -> BackupManifest:
    """Restore a back-up, by default the newest, into this installation. Return its manifest.

    The database comes last: after an interruption the installation is still empty, and the same command can
    be repeated. Newer migrations of this code are applied afterwards. Raise `BackupError` for a damaged
    back-up, one of a newer Rondo, one of another database vendor, and, unless `force`, for an installation in
    use. Nothing may run meanwhile.
    """
    manifest = target.manifest(name)
    name = name or target.names()[-1]
    _refuse_unfit(manifest)
    if not force:
        _refuse_in_use(manifest)
    report("checking everything")
    if damaged := target.damaged(name, manifest):
        raise BackupError(
            f"The back-up in {target.address} is damaged: {', '.join(damaged[:10])}. Nothing was restored. "
            "Take an earlier one with --name, or another copy."
        )
    _restore_files(target, name, manifest, report)
    report("the database")
    databases.load(_database(target, name, manifest))
    if (rows := databases.rows_now()) != dict(manifest.rows):
        tables = rows.keys() | manifest.rows.keys()
        differing = sorted(table for table in tables if rows.get(table) != manifest.rows.get(table))
        raise BackupError(f"The database came back with other rows than it had: {', '.join(differing)}.")
    call_command("migrate", verbosity=0, interactive=False)
    return manifest


def _refuse_unfit(manifest: BackupManifest) -> None:
    if manifest.vendor != connection.vendor:
        raise BackupError(
            f"The back-up is of {manifest.vendor}, and this Rondo uses {connection.vendor}: "
            "set DATABASE_URL to a database of the same sort."
        )
    known = {f"{app}.{name}" for app, name in MigrationLoader(None).disk_migrations}
    ours = {config.label for config in apps.get_app_configs()}
    unknown = (name for name in manifest.migrations if name not in known)
    newer = [name for name in unknown if name.partition(".")[0] in ours]
    if newer:
        version = f" ({manifest.commit[:12]})" if manifest.commit else ""
        raise BackupError(
            f"The back-up was made by a newer Rondo{version}: it knows {newer[0]}, and this one does not. "
            "Restore it with that version."
        )


def _refuse_in_use(manifest: BackupManifest) -> None:
    """Refuse an installation with accounts, or with files that differ from the back-up's."""
    remedy = "Restore into an empty RONDO_HOME and database, or say --force to have both replaced."
    try:
        with connection.cursor() as cursor:
            there = "annotation_user" in connection.introspection.table_names(cursor)
            if there and databases.counted(cursor, ["annotation_user"])["annotation_user"]:
                raise BackupError(f"The database is in use: people have accounts in it. {remedy}")
    except DatabaseError as error:
        raise BackupError(f"The database cannot be used: {error}.") from error
    home = Path(settings.RONDO_HOME)
    for kind in KINDS[:-1]:
        for path in sorted((home / kind).iterdir()) if (home / kind).is_dir() else []:
            key = f"{kind}/{path.name}"
            if not path.name.startswith(".") and not _holds(home / key, manifest.folders.get(key)):
                raise BackupError(f"{path} is not of this back-up. {remedy}")


def _holds(path: Path, listed: Mapping[str, File] | None) -> bool:
    """Return True if names and sizes match the back-up's: an earlier try restored the folder."""
    if listed is None:
        return False
    files = (
        {"": path}
        if path.is_file()
        else {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
    )
    return {name: file.stat().st_size for name, file in files.items()} == {
        name: file.size for name, file in listed.items()
    }


def _restore_files(
    target: Target, name: str, manifest: BackupManifest, report: Callable[[str], object]
) -> None:
    """Write each folder beside its place, then move it there; publish it to a shared store."""
    places = {
        f"{key}/{file}" if file else key: (key, file)
        for key, files in manifest.folders.items()
        for file in files
    }
    contents = (
        (*places[path], content)
        for path, content in _members(target, name)
        if path in places  # of a folder that changed while it was read, files of before
    )
    restored = set()
    for key, files in groupby(contents, key=itemgetter(0)):
        report(key)
        _restore_folder(key, manifest, ((file, content) for _, file, content in files))
        restored.add(key)
    for key in manifest.folders.keys() - restored:
        _restore_folder(key, manifest, iter(()))


def _members(target: Target, name: str) -> Iterator[tuple[str, IO[bytes]]]:
    with target.reading(name, ARCHIVE) as stream:
        yield from members(stream)


def _restore_folder(key: str, manifest: BackupManifest, contents: Iterator[tuple[str, IO[bytes]]]) -> None:
    place = Path(settings.RONDO_HOME) / key
    draft = place.with_name(f".{place.name}.restoring")
    _removed(draft)
    draft.parent.mkdir(parents=True, exist_ok=True)
    if "" not in manifest.folders[key]:
        draft.mkdir()
    written = {}
    for name, content in contents:
        path = draft / name if name else draft
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with path.open("wb") as stream:
            while data := content.read(BLOCK_BYTES):
                digest.update(data)
                stream.write(data)
        written[name] = File(path.stat().st_size, digest.hexdigest())
    if written != manifest.folders[key]:
        _removed(draft)
        raise BackupError(f"The back-up is damaged: {key} is not what was kept. Take an earlier one.")
    _removed(place)
    os.replace(draft, place)
    if key == SECRETS:
        place.chmod(0o600)
    elif store := shared():
        store.publish(key, place)


def _database(target: Target, name: str, manifest: BackupManifest) -> Iterator[bytes]:
    digest = hashlib.sha256()
    with target.reading(name, DATABASE) as stream:
        while data := stream.read(BLOCK_BYTES):
            digest.update(data)
            yield data
    if digest.hexdigest() != manifest.database.sha256:
        raise BackupError("The back-up is damaged: its database is not what was kept. Take an earlier one.")


def _removed(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
