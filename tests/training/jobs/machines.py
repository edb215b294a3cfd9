"""Machines that share a database and a store, and no disk: each has a RONDO_HOME of its own."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from django.conf import settings

from training.files import shared

Machines = Callable[[str], Path]


def machines_in(folder: Path, store_url: str) -> Iterator[Machines]:
    """`machine("web")` makes this process that machine, from now on; its folder is returned.

    Names that were not used before are machines with an empty disk.
    """
    names = ("models", "snapshots", "runs", "checkpoints", "imports")
    changed = ["RONDO_HOME", "RONDO_STORE_URL", "RONDO_UPLOADED_FILES"]
    changed += [f"RONDO_{name.upper()}" for name in names]
    before = {name: getattr(settings, name) for name in changed}

    def machine(name: str) -> Path:
        home = folder / name
        home.mkdir(exist_ok=True)
        settings.RONDO_HOME = home
        settings.RONDO_STORE_URL = store_url
        settings.RONDO_UPLOADED_FILES = "training.files.shared.SharedUploads"
        for folder_name in names:
            setattr(settings, f"RONDO_{folder_name.upper()}", home / folder_name)
        # Another machine's processes have not looked into the store yet.
        shared._next_look.clear()
        return home

    yield machine
    for name, value in before.items():
        setattr(settings, name, value)
    shared._next_look.clear()
    shutil.rmtree(folder, ignore_errors=True)


def files_in(folder: Path) -> list[str]:
    """All files below a folder but those kept beside copies, by name."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(path) for path in paths if not any(part.startswith(".") for part in path.parts))
