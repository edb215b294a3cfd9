"""Rondo's home: folders that only its owner may enter, and secrets that are made once and kept there."""

import os
import secrets
import tempfile
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from training.contract.files import make_private_folder


def writable_folder(path: Path) -> Path:
    """Return the folder, created if missing. Raise `ImproperlyConfigured` with a remedy if that fails."""
    try:
        make_private_folder(path)
    except OSError as error:
        raise ImproperlyConfigured(
            f"Rondo keeps its files in RONDO_HOME, and {path} cannot be made ({error.strerror}). "
            "Change the folder's owner or permissions, or set RONDO_HOME to a folder that you may write."
        ) from error
    return path


def stored_secret(path: Path) -> str:
    """Return the secret of a file that only its owner can read; write a random one if it is missing."""
    writable_folder(path.parent)
    if not path.exists():
        # Two processes may start at once: each writes a whole file (mode 0600) under its own name,
        # and only one of them gets the final name.
        descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(descriptor, "w") as stream:
            stream.write(secrets.token_urlsafe(48) + "\n")
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            os.unlink(draft)
    return path.read_text().strip()
