"""Collection of static files, repeated only after a change."""

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
    """`collectstatic` failed; carries its last output."""


def collect_if_changed() -> tuple[int, bool]:
    """Collect the static files of all apps. Return their number and True if they had changed.

    Raise NotCollectedError with the output of `collectstatic`.
    """
    sources = _sources()
    fingerprint = _fingerprint(sources)
    stamp = Path(settings.STATIC_ROOT) / ".collected"
    if stamp.is_file() and stamp.read_text() == fingerprint:
        return len(sources), False
    # In a separate process: this one chose its storage when it read its settings.
    finished = subprocess.run(
        [sys.executable, "-m", "django", "collectstatic", "--no-input", "--clear", "--verbosity", "0"],
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
    """Return every static file by its served name, with its path."""
    paths: dict[str, str] = {}
    for finder in get_finders():
        for name, storage in finder.list([]):
            paths.setdefault(name, storage.path(name))
    return paths


def _fingerprint(sources: dict[str, str]) -> str:
    digest = hashlib.sha256()
    for name, path in sorted(sources.items()):
        status = os.stat(path)
        digest.update(f"{name}\0{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()
