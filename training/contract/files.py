"""Atomic reading and writing of the contract's files."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
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
