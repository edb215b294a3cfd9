"""Static files are collected again only when one of them changed."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from django.conf import settings
from django.contrib.staticfiles.finders import get_finders

from webapp.supervision.errors import UpError
from webapp.supervision.programs import environment, working_folder


class NotCollectedError(UpError):
    """`collectstatic` failed; carries its last words."""


def collect_if_changed() -> tuple[int, bool]:
    """Collect the static files of all apps. Returns how many there are, and whether they had changed.

    Raises NotCollectedError with what `collectstatic` said.
    """
    sources = _sources()
    fingerprint = _fingerprint(sources)
    stamp = Path(settings.STATIC_ROOT) / ".collected"
    if stamp.is_file() and stamp.read_text() == fingerprint:
        return len(sources), False
    # In a process of its own: this one has chosen its storage when its settings were read.
    finished = subprocess.run(
        [sys.executable, "manage.py", "collectstatic", "--no-input", "--clear", "--verbosity", "0"],
        cwd=working_folder(),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        lines = (finished.stderr or finished.stdout).strip().splitlines()
        raise NotCollectedError(lines[-1] if lines else f"exit status {finished.returncode}")
    stamp.write_text(fingerprint)
    return len(sources), True


def _sources() -> dict[str, str]:
    """Every static file by the name under which it is served, with its path."""
    found: dict[str, str] = {}
    for finder in get_finders():
        for name, storage in finder.list([]):
            found.setdefault(name, storage.path(name))
    return found


def _fingerprint(sources: dict[str, str]) -> str:
    digest = hashlib.sha256()
    for name, path in sorted(sources.items()):
        status = os.stat(path)
        digest.update(f"{name}\0{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()
