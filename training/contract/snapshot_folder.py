"""Snapshot folder: an immutable, content-addressed export of judgments and their prompts."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from annotation.record.base import ContractError, record, require
from training.contract.files import (
    FORMAT_VERSION,
    canonical_json,
    read_record,
    sha256_of_file,
    write_atomically,
)
from training.contract.prompts import SnapshotPrompt
from training.contract.snapshot import SnapshotRow

SNAPSHOT_HEADER_FILE = "snapshot.json"
SNAPSHOT_ROWS_FILE = "judgments.jsonl"
SNAPSHOT_PROMPTS_FILE = "prompts.jsonl"


@record
class SnapshotHeader:
    """The content of `snapshot.json`."""

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
    feedback: int = 0
    """Rows of feedback from applications' end users; not written where it is 0."""
    format: int = FORMAT_VERSION


def write_snapshot(
    folder: Path,
    rows: Iterable[SnapshotRow],
    *,
    project: str,
    rounds: tuple[int, ...],
    prompts: Iterable[SnapshotPrompt] = (),
    ai_judgments: int = 0,
    feedback: int = 0,
) -> SnapshotHeader:
    """Write rows and prompts, in their order, and the header with the counts of AI judgments and feedback.

    The header comes last: without it the folder is no snapshot. The digest depends on content alone; writing
    twice changes nothing."""
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
        feedback=feedback,
    )
    values = dataclasses.asdict(header)
    if not feedback:
        del values["feedback"]
    write_atomically(folder / SNAPSHOT_HEADER_FILE, canonical_json(values) + "\n")
    return header


def _write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write a file atomically and sync it; return the number of its lines."""
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
    """Return the header of a snapshot folder. Raises `ContractError` if it is missing."""
    return read_record(SnapshotHeader, folder / SNAPSHOT_HEADER_FILE)


def read_snapshot(folder: Path, *, verify: bool = True) -> Iterator[SnapshotRow]:
    """Stream the rows. With `verify`, check the files against the header's digest before the first row.
    Errors name file, line and field."""
    _check(folder, verify=verify)
    for where, values in _lines(folder / SNAPSHOT_ROWS_FILE):
        yield SnapshotRow.from_json(values, where=where)


def read_prompts(folder: Path, *, verify: bool = True) -> Iterator[SnapshotPrompt]:
    """Stream the prompts of both splits, with the checks and errors of `read_snapshot`.

    Without a prompts.jsonl, each prompt of the judgments once, in order of appearance, without references.
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
    """Return the header after checking that its files exist and, with `verify`, match its digest."""
    header = read_snapshot_header(folder)
    for name in [SNAPSHOT_ROWS_FILE, *([SNAPSHOT_PROMPTS_FILE] if header.prompts else [])]:
        path = folder / name
        require(path.is_file(), str(path), "the file is missing; freeze the snapshot again")
    if verify:
        digest = _digest(folder)
        path = folder / SNAPSHOT_ROWS_FILE
        require(digest == header.digest, str(path), f"digest {digest} is not the header's {header.digest}")
    return header


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield each line's location and decoded JSON."""
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, start=1):
            where = f"{path.name} line {number}"
            try:
                yield where, json.loads(line)
            except json.JSONDecodeError as error:
                raise ContractError(f"{where}: not JSON ({error})") from None
