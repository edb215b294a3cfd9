"""Files readable by this process's user alone: databases, keys, uploads, back-ups.

On the standard library alone: the settings call it before Django is there.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path

FOLDER_MODE = 0o700
FILE_MODE = 0o600


def make_private_folder(path: Path) -> None:
    """Make a folder, or remove others' rights to an existing one.

    Leaves alone other users' folders and shared ones such as /tmp.
    """
    path.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
    _restrict(path, FOLDER_MODE)


def make_home_private(home: Path, *, checked: tuple[str, ...] = ()) -> None:
    """Write private files from now on, and remove others' rights to those directly below `home`.

    checked: files that a system check reports instead, because their content may be exposed already.
    """
    os.umask(0o077)
    make_private_folder(home)
    for path in home.iterdir():
        if path.name not in checked:
            _restrict(path, FOLDER_MODE if path.is_dir() else FILE_MODE)


def _restrict(path: Path, mode: int) -> None:
    # Another process may remove the path meanwhile; of what belongs to another user nothing can be changed.
    with suppress(FileNotFoundError, PermissionError):
        status = path.lstat()
        is_shared = status.st_mode & stat.S_ISVTX
        is_plain = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
        if is_plain and not is_shared and stat.S_IMODE(status.st_mode) & 0o077:
            path.chmod(mode)
