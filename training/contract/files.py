"""Atomic reading and writing of the contract's files."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from annotation.record.base import ContractError, decode

T = TypeVar("T")

FORMAT_VERSION = 1
SOURCE_FILE = "source.json"
"""Origin of a base model: a file in the model's own folder."""


def canonical_json(value: Any) -> str:
    """Return the canonical JSON of a value: sorted keys, no spaces, UTF-8 unescaped."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_of_file(path: Path) -> str:
    """Return the hex digest of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_atomically(path: Path, text: str) -> None:
    """Write `text` so that a reader sees the old file or the new one, never a part.

    Syncs the file and its folder, so that the content survives a power cut.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def require_format(values: Any, where: str) -> None:
    """Raise `ContractError` for decoded JSON of another format version, before its fields are read."""
    version = values.get("format", FORMAT_VERSION) if isinstance(values, Mapping) else FORMAT_VERSION
    if version != FORMAT_VERSION:
        raise ContractError(
            f"{where}: format {version!r} is not {FORMAT_VERSION}, the one that this version of Rondo reads; "
            "take the version that wrote it, or write it again with this one"
        )


def read_json(path: Path) -> Any:
    """Return the decoded JSON of a file. Raises `ContractError` if it is missing or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ContractError(f"{path}: the file is missing") from None
    except json.JSONDecodeError as error:
        raise ContractError(f"{path}: not JSON ({error})") from None


def read_record(cls: type[T], path: Path) -> T:
    """Read a record of this format from a JSON file."""
    values = read_json(path)
    require_format(values, str(path))
    return decode(cls, values, str(path))


# ── Files readable by this process's user alone: databases, keys, uploads, back-ups ──
#
# On the standard library alone: the settings call it before Django is there.


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
