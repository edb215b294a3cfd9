"""Snapshot folder: an immutable, content-addressed export of judgments and of the prompts they are on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.contract.files import (
    FORMAT_VERSION,
    ContractError,
    canonical_json,
    known_fields,
    read_json,
    require,
    require_format,
    sha256_of_file,
    write_atomically,
)
from training.contract.prompts import SnapshotPrompt
from training.contract.snapshot import SnapshotRow

SNAPSHOT_HEADER_FILE = "snapshot.json"
SNAPSHOT_ROWS_FILE = "judgments.jsonl"
SNAPSHOT_PROMPTS_FILE = "prompts.jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotHeader:
    """What stands in `snapshot.json` beside the rows."""

    project: str
    rounds: tuple[int, ...]
    rows: int
    digest: str
    """The snapshot's identity: SHA-256 of judgments.jsonl, and where there is a prompts.jsonl the SHA-256 of
    the two files' digests, in hexadecimal with a space between."""
    prompts: int = 0
    """Lines of prompts.jsonl; 0 where there is none."""
    ai_judgments: int = 0
    """Rows that programs judged; 0 where only people's are in."""
    format: int = FORMAT_VERSION


def write_snapshot(
    folder: Path,
    rows: Iterable[SnapshotRow],
    *,
    project: str,
    rounds: tuple[int, ...],
    prompts: Iterable[SnapshotPrompt] = (),
    ai_judgments: int = 0,
) -> SnapshotHeader:
    """Write rows and prompts, in the order given, and the header with how many rows programs judged.
    The header comes last: without it the folder is no snapshot. Content decides the digest; writing twice
    changes nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    row_count = _write_lines(folder / SNAPSHOT_ROWS_FILE, (row.to_json() for row in rows))
    prompt_count = _write_lines(folder / SNAPSHOT_PROMPTS_FILE, (prompt.to_json() for prompt in prompts))
    if not prompt_count:
        (folder / SNAPSHOT_PROMPTS_FILE).unlink()
    header = SnapshotHeader(
        project=project,
        rounds=rounds,
        rows=row_count,
        digest=_digest(folder),
        prompts=prompt_count,
        ai_judgments=ai_judgments,
    )
    write_atomically(folder / SNAPSHOT_HEADER_FILE, canonical_json(dataclasses.asdict(header)) + "\n")
    return header


def _write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write a file whole or not at all, and sync it; the number of its lines."""
    count = 0
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            for line in lines:
                stream.write(line + "\n")
                count += 1
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return count


def _digest(folder: Path) -> str:
    rows = sha256_of_file(folder / SNAPSHOT_ROWS_FILE)
    prompts = folder / SNAPSHOT_PROMPTS_FILE
    if not prompts.is_file():
        return rows
    return hashlib.sha256(f"{rows} {sha256_of_file(prompts)}".encode()).hexdigest()


def read_snapshot_header(folder: Path) -> SnapshotHeader:
    """The header of a snapshot folder. Raises `ContractError` where there is none."""
    path = folder / SNAPSHOT_HEADER_FILE
    found = read_json(path)
    require_format(found, str(path))
    values = known_fields(SnapshotHeader, found, str(path))
    return SnapshotHeader(**{**values, "rounds": tuple(values["rounds"])})


def read_snapshot(folder: Path, *, verify: bool = True) -> Iterator[SnapshotRow]:
    """Stream the rows. With `verify` the files are checked against the header's digest
    before the first row is given. Errors name file, line and field."""
    _check(folder, verify=verify)
    for where, values in _lines(folder / SNAPSHOT_ROWS_FILE):
        yield SnapshotRow.from_json(values, where=where)


def read_prompts(folder: Path, *, verify: bool = True) -> Iterator[SnapshotPrompt]:
    """Stream the prompts, those of both splits; checks and errors are those of `read_snapshot`.

    Where the snapshot has no prompts.jsonl the prompts of its judgments serve, each once, in the order in
    which they are met, without references.
    """
    seen: set[str] = set()
    if _check(folder, verify=verify).prompts:
        for where, values in _lines(folder / SNAPSHOT_PROMPTS_FILE):
            prompt = SnapshotPrompt.from_json(values, where=where)
            require(prompt.id not in seen, where, f"prompt {prompt.id!r} is there twice")
            seen.add(prompt.id)
            yield prompt
        return
    for row in read_snapshot(folder, verify=False):
        if row.prompt not in seen:
            seen.add(row.prompt)
            yield SnapshotPrompt(id=row.prompt, split=row.split, messages=row.messages, context=row.context)


def _check(folder: Path, *, verify: bool) -> SnapshotHeader:
    """The header, once the files that it speaks of are there and, with `verify`, are those that it means."""
    header = read_snapshot_header(folder)
    for name in [SNAPSHOT_ROWS_FILE, *([SNAPSHOT_PROMPTS_FILE] if header.prompts else [])]:
        path = folder / name
        require(path.is_file(), str(path), "the file is missing; freeze the snapshot again")
    if verify:
        found = _digest(folder)
        path = folder / SNAPSHOT_ROWS_FILE
        require(found == header.digest, str(path), f"digest {found} is not the header's {header.digest}")
    return header


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Where a line stands and what is decoded from it."""
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, start=1):
            where = f"{path.name} line {number}"
            try:
                yield where, json.loads(line)
            except json.JSONDecodeError as error:
                raise ContractError(f"{where}: not JSON ({error})") from None
