"""A back-up comes back: everything is checked first, then the files, the database last."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader

from training.files import shared
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
    told: Callable[[str], object] = lambda words: None,
) -> Manifest:
    """Bring a back-up, the newest unless one is named, into this installation; what was brought.

    The database comes last: where it breaks off before, the installation is as empty as it was, and the same
    command goes on. Newer migrations of this code are applied to it then. Refuses (`BackupError`) a damaged
    back-up, one of a newer Rondo, one of another sort of database, and an installation that holds anything,
    unless `force`. Nothing may run meanwhile.
    """
    manifest = target.manifest(name)
    _refuse_unfit(manifest)
    if not force:
        _refuse_in_use(manifest)
    told("checking every piece")
    if damaged := target.damaged(manifest):
        raise BackupError(
            f"The back-up in {target.address} is damaged: {', '.join(damaged[:10])}. Nothing was restored. "
            "Take an earlier one with --name, or another copy."
        )
    for key, listing in manifest.folders.items():
        told(key)
        _bring(target, key, listing)
    told("the database")
    entry = manifest.database.files[DATABASE_FILE]
    databases.load(target.content("the database", entry))
    if (found := databases.rows_now()) != dict(manifest.rows):
        tables = found.keys() | manifest.rows.keys()
        differing = sorted(table for table in tables if found.get(table) != manifest.rows.get(table))
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
    newer = [one for one in manifest.migrations if one not in known and one.partition(".")[0] in ours]
    if newer:
        version = f" ({manifest.commit[:12]})" if manifest.commit else ""
        raise BackupError(
            f"The back-up was made by a newer Rondo{version}: it knows {newer[0]}, and this one does not. "
            "Restore it with that version."
        )


def _refuse_in_use(manifest: Manifest) -> None:
    """An installation is empty where nobody was ever made, and no file is other than the back-up's."""
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
    """Whether a folder looks as the back-up's, by names and sizes: an earlier try brought it."""
    if listing is None:
        return False
    files = (
        {path.name: path}
        if path.is_file()
        else {one.relative_to(path).as_posix(): one for one in path.rglob("*") if one.is_file()}
    )
    return {name: one.stat().st_size for name, one in files.items()} == {
        name: entry.size for name, entry in listing.files.items()
    }


def _bring(target: Target, key: str, listing: Listing) -> None:
    """Write one folder beside its place, then put it there; and into the store, where machines share one."""
    # Listings refuse such names themselves; their own key is no part of them.
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
