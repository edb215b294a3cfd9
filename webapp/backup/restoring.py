"""Restore of a back-up: check everything, then write the files, the database last."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader

from training.files.shared import shared
from training.store import Entry, Listing
from training.store.listings import require_plain
from webapp.backup import databases
from webapp.backup.errors import BackupError
from webapp.backup.folders import KINDS, SECRETS
from webapp.backup.making import DATABASE_FILE
from webapp.backup.target import Manifest, Target


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
    _refuse_unfit(manifest)
    if not force:
        _refuse_in_use(manifest)
    report("checking every piece")
    if damaged := target.damaged(manifest):
        raise BackupError(
            f"The back-up in {target.address} is damaged: {', '.join(damaged[:10])}. Nothing was restored. "
            "Take an earlier one with --name, or another copy."
        )
    for key, listing in manifest.folders.items():
        report(key)
        _bring(target, key, listing)
    report("the database")
    entry = manifest.database.files[DATABASE_FILE]
    databases.load(target.content("the database", entry))
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


def _holds(path: Path, listing: Listing | None) -> bool:
    """Return True if names and sizes match the back-up's: an earlier try restored the folder."""
    if listing is None:
        return False
    files = (
        {path.name: path}
        if path.is_file()
        else {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
    )
    return {name: file.stat().st_size for name, file in files.items()} == {
        name: entry.size for name, entry in listing.files.items()
    }


def _bring(target: Target, key: str, listing: Listing) -> None:
    """Write a folder next to its destination, then move it there; publish it to a shared store."""
    # Listings refuse such names themselves, but do not include their own key.
    require_plain(key, where=target.address)
    kind, _, name = key.partition("/")
    if key != SECRETS and (kind not in KINDS or not name or "/" in name):
        raise BackupError(f"The back-up in {target.address} holds {key}, which no Rondo puts there.")
    place = Path(settings.RONDO_HOME) / key
    draft = place.with_name(f".{place.name}.restoring")
    _removed(draft)
    draft.mkdir(parents=True)
    for name, entry in listing.files.items():
        _write(target, name, entry, draft / name)
    single = set(listing.files) == {place.name}
    _removed(place)
    os.replace(draft / place.name if single else draft, place)
    _removed(draft)
    if key == SECRETS:
        place.chmod(0o600)
    elif store := shared():
        store.publish(key, place)


def _write(target: Target, name: str, entry: Entry, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as stream:
        for data in target.content(name, entry):
            stream.write(data)


def _removed(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
