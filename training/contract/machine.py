"""Resource use of the trainer: `machine.jsonl` in a run's folder, a line every few seconds."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from annotation.record.base import Figure, decode, record
from training.contract.files import canonical_json

MACHINE_FILE = "machine.jsonl"
_TAIL_BYTES = 1 << 16


@record
class MachineUse:
    """The resource use of a trainer's first process at one moment."""

    time: Figure
    """Seconds since the epoch."""
    step: int
    """Steps taken so far."""
    device: str
    """The device, such as `cpu` or `cuda:0 (NVIDIA H100)`."""
    memory_bytes: int
    """Resident memory of the process."""
    cpu_cores: Figure
    """Processor cores kept busy since the line before."""
    tokens_per_second: Figure | None = None
    """Of the steps since the line before; None if a step has no token count."""
    gpu_memory_bytes: int | None = None
    """GPU memory held by the process; None without a GPU."""
    gpu_memory_total_bytes: int | None = None


def append_machine_use(run_folder: Path, use: MachineUse) -> None:
    """Append a line."""
    with (run_folder / MACHINE_FILE).open("a", encoding="utf-8") as stream:
        stream.write(canonical_json(dataclasses.asdict(use)) + "\n")


def read_machine_use(run_folder: Path) -> list[MachineUse]:
    """Return the valid lines in the file's last 64 KiB, oldest first."""
    path = run_folder / MACHINE_FILE
    if not path.is_file():
        return []
    with path.open("rb") as stream:
        start = max(0, path.stat().st_size - _TAIL_BYTES)
        stream.seek(start)
        lines = stream.read().split(b"\n")
    uses = []
    # The first piece may be the end of a line, the last one the beginning of one.
    for line in lines[1 if start else 0 : -1]:
        try:
            uses.append(decode(MachineUse, json.loads(line), str(path)))
        except ValueError:
            continue
    return uses
