"""Places of Rondo's files: in a checkout, or installed from a wheel.

A wheel holds templates and static files in `webapp/assets`, and data lies outside the package.
"""

import os
import secrets
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured

from training.contract.files import make_private_folder

# Rondo's home: folders that only its owner may enter, and secrets that are made once and kept there.


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


if TYPE_CHECKING:
    from packaging.requirements import Requirement

BASE_DIR = Path(__file__).resolve().parents[2]
IS_CHECKOUT = (BASE_DIR / "manage.py").is_file()
ASSETS = BASE_DIR if IS_CHECKOUT else BASE_DIR / "webapp" / "assets"


def default_home() -> Path:
    """Return the folder of database, models, runs and logs where RONDO_HOME names none."""
    if IS_CHECKOUT:
        return BASE_DIR / "var"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "rondo"


def required_packages() -> "list[Requirement]":
    """Return what Rondo needs at run time, from requirements.txt or the metadata of the wheel."""
    # Commands ask; a web process never does, and keeps the memory.
    from packaging.requirements import Requirement

    if IS_CHECKOUT:
        lines = (BASE_DIR / "requirements.txt").read_text(encoding="utf-8").splitlines()
    else:
        lines = [line for line in metadata.requires("rondo") or [] if "extra ==" not in line]
    return [Requirement(line) for raw in lines if (line := raw.partition("#")[0].strip())]


def manage(words: str) -> str:
    """Return the command line of a management command, as one types it here."""
    if IS_CHECKOUT:
        return f".venv/bin/python manage.py {words}"
    return f"{Path(sys.argv[0]).name if sys.argv[0].endswith('rondo') else 'rondo'} manage {words}"
