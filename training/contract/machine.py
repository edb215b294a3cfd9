"""`machine.jsonl` of a run's folder: what the machine gave to it, every few seconds."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from training.contract.files import ContractError, canonical_json, known_fields

MACHINE_FILE = "machine.jsonl"
_TAIL_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineUse:
    """The use of one machine by a trainer's first process, at one moment."""

    time: float
    """Seconds since the epoch."""
    step: int
    """Steps taken so far."""
    device: str
    """Where it computes, as `cpu` or `cuda:0 (NVIDIA H100)`."""
    memory_bytes: int
    """Resident memory of the process."""
    cpu_cores: float
    """How many processor cores it kept busy since the line before."""
    tokens_per_second: float | None = None
    """Of the steps since the line before; None where a step tells no tokens."""
    gpu_memory_bytes: int | None = None
    """What the process holds of the GPU's memory; None without a GPU."""
    gpu_memory_total_bytes: int | None = None


def append_machine_use(run_folder: Path, use: MachineUse) -> None:
    """Add a line."""
    with (run_folder / MACHINE_FILE).open("a", encoding="utf-8") as stream:
        stream.write(canonical_json(dataclasses.asdict(use)) + "\n")


def read_machine_use(run_folder: Path) -> list[MachineUse]:
    """The latest lines, oldest first: those of the file's last 64 KiB. What is no such line is left out."""
    path = run_folder / MACHINE_FILE
    if not path.is_file():
        return []
    with path.open("rb") as stream:
        start = max(0, path.stat().st_size - _TAIL_BYTES)
        stream.seek(start)
        lines = stream.read().split(b"\n")
    found = []
    # The first piece may be the end of a line, the last one the beginning of one.
    for line in lines[1 if start else 0 : -1]:
        try:
            found.append(MachineUse(**known_fields(MachineUse, json.loads(line), str(path))))
        except (ValueError, ContractError):
            continue
    return found
