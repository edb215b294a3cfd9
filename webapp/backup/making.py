"""Creation of a back-up: the database, then the files, then the manifest."""

import json
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.db import connection
from django.utils import timezone

from training.contract import write_atomically
from training.contract.private_files import FILE_MODE
from training.services.runs.runs import version_of_rondo
from training.store import Listing
from webapp.backup import databases
from webapp.backup.folders import copied
from webapp.backup.target import Manifest, Target

STAMP_FILE = "backups.json"
"""Below RONDO_HOME: time and counts of the last back-up, for monitoring."""
DATABASE_FILE = "database"


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """The result of a back-up."""

    name: str
    manifest: Manifest
    written: int
    """Bytes that were not in the target before."""


def make_backup(target: Target, *, models: bool = True, secrets: bool = False) -> Made:
    """Copy the database, then the files, into a target; the back-up exists once its manifest is written.

    models: include base models. secrets: include the secret key. People and workers may continue meanwhile.
    Raise `BackupError`, or `StoreError` if target or store fail; the next try reuses the copied pieces.
    """
    target.make_private()
    now = timezone.now()
    name = now.strftime("%Y%m%dT%H%M%S.%fZ")
    with databases.dumped() as dump:
        database = target.put(dump.stream)
    manifest = Manifest(
        time=now.isoformat(),
        commit=version_of_rondo(),
        vendor=connection.vendor,
        migrations=dump.migrations,
        rows=dump.rows,
        database=Listing({DATABASE_FILE: database}),
        folders=dict(copied(target, models=models, secrets=secrets)),
    )
    target.write_manifest(name, manifest)
    _leave_stamp(target, name, manifest)
    return Made(name=name, manifest=manifest, written=target.written)


def _leave_stamp(target: Target, name: str, manifest: Manifest) -> None:
    stamp = {
        "time": manifest.time,
        "name": name,
        "target": target.address,
        "rows": sum(manifest.rows.values()),
        "files": manifest.files,
        "bytes": manifest.size,
        "bytes_written": target.written,
    }
    path = Path(settings.RONDO_HOME) / STAMP_FILE
    write_atomically(path, json.dumps(stamp, indent=2) + "\n")
    path.chmod(FILE_MODE)
