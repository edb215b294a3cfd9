"""Places of Rondo's files: in a checkout, or installed from a wheel.

A wheel holds templates and static files in `webapp/assets`, and data lies outside the package.
"""

import os
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

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
