"""Tensors of a run in one folder: one file, or of cut tensors a file for each part, each with its digest.

A run may be continued by another number of processes: each then reads its rows from the files that have them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from training.contract import sha256_of_file
from training.rlhf.model.sharding import local, place_in_copy, rows_of
from training.rlhf.runtime.processes import Processes

_SINGLE = "state.safetensors"
_PART = "state-{:05d}.safetensors"
_DIGEST = ".sha256"


def write_tensors(folder: Path, tensors: Mapping[str, Tensor], *, first: bool) -> None:
    """Write tensors, or this process's part of them, into a folder that is there.

    first: whether this is the run's first process, which writes what is whole in each.
    """
    cut = {name: value for name, value in tensors.items() if isinstance(value, DTensor)}
    if not cut:
        if first:
            _write(folder / _SINGLE, tensors)
        return
    copy, part = place_in_copy(next(iter(cut.values())))
    if copy == 0:
        _write(folder / _PART.format(part), tensors if part == 0 else cut)


def read_tensors(folder: Path, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return all tensors of a folder by name; those that `like` has as cut ones are cut in the same way.

    Raises OSError, ValueError or SafetensorError where they cannot be read.
    """
    with ExitStack() as stack:
        files = [
            stack.enter_context(safe_open(path, framework="pt"))
            for path in sorted(folder.glob("state*.safetensors"))
        ]
        if not files:
            raise OSError("it has no state*.safetensors")
        holders: dict[str, list[Any]] = {}
        for file in files:
            for name in file.keys():  # noqa: SIM118 - no mapping
                holders.setdefault(name, []).append(file)
        return {name: _read(name, some, like.get(name)) for name, some in holders.items()}


def damage(folder: Path, processes: Processes) -> str:
    """Return which file of a folder is not as it was written, by its digest; empty where all are.

    All processes call it, each reads a part of the files, and all get the same. Folders of older versions of
    Rondo have no digests.
    """
    # The digests decide which files there are, not the folder: one may be gone.
    digests = sorted(folder.glob(f"*{_DIGEST}"))
    mine = [fault for path in digests[processes.rank :: processes.world] if (fault := _fault(path))]
    return next((fault for faults in processes.gather_objects(mine) for fault in faults), "")


def _fault(digest: Path) -> str:
    path = digest.with_name(digest.name.removesuffix(_DIGEST))
    try:
        intact = sha256_of_file(path) == digest.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        return f"{path.name}: {error}"
    return "" if intact else f"{path.name} is not as it was written"


def write_digest(path: Path) -> None:
    """Write a file's digest beside it."""
    digest = path.with_name(path.name + _DIGEST)
    digest.write_text(sha256_of_file(path) + "\n", encoding="ascii")
    sync(digest)


def _read(name: str, files: list[Any], like: Tensor | None) -> Tensor:
    rows = rows_of(like) if isinstance(like, DTensor) else None
    if rows is None or not isinstance(like, DTensor):
        parts = [file.get_tensor(name) for file in files]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
    parts, start = [], 0
    for file in files:
        held = file.get_slice(name)
        length = held.get_shape()[0]
        begin, end = max(rows.start, start), min(rows.stop, start + length)
        if begin < end:
            parts.append(held[begin - start : end - start])
        start += length
    if start != like.shape[0]:
        raise ValueError(f"{name} has {start} rows instead of {like.shape[0]}")
    here = torch.cat(parts) if parts else torch.empty_like(like.to_local())
    return DTensor.from_local(
        here.to(like.device),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file({name: local(value).detach().cpu().contiguous() for name, value in tensors.items()}, path)
    sync(path)
    write_digest(path)


def sync(path: Path) -> None:
    """Return once a file or a folder's list of files is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
