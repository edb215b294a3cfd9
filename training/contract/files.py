"""Reading and writing the files of the contract, whole or not at all."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

FORMAT_VERSION = 1


class ContractError(ValueError):
    """A file of the contract says something that its reader cannot accept."""


def canonical_json(value: Any) -> str:
    """The one spelling of a value as JSON: sorted keys, no spaces, UTF-8 as it is."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_of_file(path: Path) -> str:
    """Hex digest of a file's bytes, read in pieces."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_atomically(path: Path, text: str) -> None:
    """Write `text` so that a reader sees the old file or the new one, never a part.

    The file and its folder are synced: what this returns from survives a power cut.
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
    """Refuse decoded JSON of another format than ours, before its fields are looked at."""
    found = values.get("format", FORMAT_VERSION) if isinstance(values, Mapping) else FORMAT_VERSION
    if found != FORMAT_VERSION:
        raise ContractError(
            f"{where}: format {found!r} is not {FORMAT_VERSION}, the one that this version of Rondo reads; "
            "take the version that wrote it, or write it again with this one"
        )


def require(condition: bool, where: str, remedy: str) -> None:
    """Refuse with `where` and what to do, unless `condition` holds."""
    if not condition:
        raise ContractError(f"{where}: {remedy}")


def known_fields(cls: type, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`values` for the constructor of the dataclass `cls`; unknown and missing names refused."""
    if not isinstance(values, Mapping):
        raise ContractError(f"{where}: an object is expected, not {type(values).__name__}")
    names = {f.name for f in dataclasses.fields(cls)}
    unknown = sorted(set(values) - names)
    if unknown:
        near = difflib.get_close_matches(unknown[0], names, n=1)
        meant = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(names))}"
        raise ContractError(f"{where}: unknown field {', '.join(map(repr, unknown))}; {meant}")
    needed = {
        f.name
        for f in dataclasses.fields(cls)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    missing = sorted(needed - set(values))
    require(not missing, where, f"field {', '.join(map(repr, missing))} is missing")
    return dict(values)


def require_types(instance: Any, where: str) -> None:
    """Refuse a dataclass whose plain fields do not hold what their annotations say.

    JSON brings "3" for 3 and true for 1; neither passes for a number here. An integer
    serves where a float is asked for.
    """
    cls: Any = type(instance)
    for name, hint in _field_types(cls):
        value = getattr(instance, name)
        require_type(value, hint, f"{where}: field {name!r}")


def require_type(value: Any, hint: Any, what: str) -> None:
    """Refuse a value that is not what a type hint says, as `require_types` does; `what` names it."""
    if not _fits(value, hint):
        wanted = getattr(hint, "__name__", str(hint)).replace("typing.", "")
        raise ContractError(f"{what} must be {wanted}, not {value!r}")


@functools.cache
def _field_types(cls: Any) -> list[tuple[str, Any]]:
    return [(name, hint) for name, hint in get_type_hints(cls).items() if get_origin(hint) is not ClassVar]


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin is Literal:
        return value in arguments
    if origin in (Union, UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            _fits(key, arguments[0]) and _fits(item, arguments[1]) for key, item in value.items()
        )
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value)
    if hint is int:
        return type(value) is int
    return isinstance(value, hint)


def read_json(path: Path) -> Any:
    """Decoded JSON of a file. Raises `ContractError` where it is missing or is no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ContractError(f"{path}: the file is missing") from None
    except json.JSONDecodeError as error:
        raise ContractError(f"{path}: not JSON ({error})") from None
