"""Restore of a back-up: check everything, then write the files, the database last."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import IO

from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader

from training.files.shared import shared
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
    members,
)


def restore_backup(
    target: Target,
    name: str = "",
    *,
    force: bool = False,
    report: Callable[[str], object] = lambda words: None,
) -> Manifest:
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


def _refuse_unfit(manifest: Manifest) -> None:
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


def _refuse_in_use(manifest: Manifest) -> None:
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


def _restore_files(target: Target, name: str, manifest: Manifest, report: Callable[[str], object]) -> None:
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


def _restore_folder(key: str, manifest: Manifest, contents: Iterator[tuple[str, IO[bytes]]]) -> None:
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


def _database(target: Target, name: str, manifest: Manifest) -> Iterator[bytes]:
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
