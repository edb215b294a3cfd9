"""Memory of base models: what one needs, what is free, and on which GPU."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

_PROCESS_BYTES = 700 * 1024**2
"""Python, torch and its libraries."""
_NVIDIA = ("nvidia-smi", "--query-gpu=index,memory.free,memory.total", "--format=csv,noheader,nounits")
_WEIGHT_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """Memory of one device, in bytes."""

    gpu: int | None
    """The GPU's number; None for the processor's memory."""
    free: int
    total: int


def rooms(device: str) -> list[Room]:
    """Return the devices that bases can be placed on: the GPUs where there are any, else the memory."""
    gpus = _gpus() if device in ("auto", "cuda") else []
    if gpus:
        return gpus
    memory = psutil.virtual_memory()
    return [Room(gpu=None, free=memory.available, total=memory.total)]


def _gpus() -> list[Room]:
    program = shutil.which(_NVIDIA[0])
    if program is None:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        output = subprocess.run(
            [program, *_NVIDIA[1:]], capture_output=True, text=True, timeout=5, check=True
        ).stdout
        gpus = [
            Room(gpu=int(index), free=int(free) << 20, total=int(total) << 20)
            for index, free, total in csv.reader(output.splitlines(), skipinitialspace=True)
        ]
    except (OSError, subprocess.SubprocessError, ValueError):
        return []
    if visible is None:
        return gpus
    return [room for room in gpus if str(room.gpu) in [name.strip() for name in visible.split(",")]]


def needed_bytes(folder: Path, *, places: int, dtype: str, on_gpu: bool) -> int:
    """Return the memory that serving the base in `folder` takes: weights, keys and values, the process.

    places: tokens whose keys and values are kept. 0 for a base whose files are not here yet.
    """
    size = _WEIGHT_BYTES.get(dtype, 2 if on_gpu else 4)
    parameters = _parameters_in(folder)
    if not parameters:
        return 0
    process = 0 if on_gpu else _PROCESS_BYTES
    return (parameters + places * _per_place(folder)) * size + process


def _parameters_in(folder: Path) -> int:
    try:
        return sum(_parameters_of(file) for file in folder.glob("*.safetensors"))
    except (OSError, ValueError, KeyError, struct.error):
        return 0


def _parameters_of(file: Path) -> int:
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def _per_place(folder: Path) -> int:
    """Return the numbers that the keys and values of one token are."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        heads = int(config["num_attention_heads"])
        size = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
        return 2 * int(config["num_hidden_layers"]) * int(config.get("num_key_value_heads") or heads) * size
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0


def resident_bytes(pid: int) -> int:
    """Return the memory that a process holds of the machine; 0 for one that has ended."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
