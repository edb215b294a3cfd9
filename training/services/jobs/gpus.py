"""GPUs of this host, as nvidia-smi lists them."""

import csv
import shutil
import subprocess
from typing import Any

_NVIDIA = (
    "nvidia-smi",
    "--query-gpu=index,name,utilization.gpu,memory.used,memory.total",
    "--format=csv,noheader,nounits",
)


def gpus() -> list[dict[str, Any]]:
    """Return the GPUs that nvidia-smi lists; none where it is missing or does not answer."""
    program = shutil.which(_NVIDIA[0])
    if program is None:
        return []
    try:
        output = subprocess.run(
            [program, *_NVIDIA[1:]], capture_output=True, text=True, timeout=5, check=True
        ).stdout
        return [
            {
                "index": int(index),
                "name": name,
                "utilisation": _number(utilisation, 100),
                "memory_bytes": _number(used, 1 / (1 << 20)),
                "memory_total_bytes": _number(total, 1 / (1 << 20)),
            }
            for index, name, utilisation, used, total in csv.reader(
                output.splitlines(), skipinitialspace=True
            )
        ]
    except (OSError, subprocess.SubprocessError, ValueError):
        return []


def gpu_bytes_by_process() -> list[tuple[int, int]]:
    """Process and bytes of each that computes on a GPU; none where nvidia-smi does not say."""
    program = shutil.which(_NVIDIA[0])
    if program is None:
        return []
    command = [program, "--query-compute-apps=pid,used_gpu_memory", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = csv.reader(output.splitlines(), skipinitialspace=True)
    return [
        (int(row[0]), int(row[1]) << 20)
        for row in rows
        if len(row) == 2 and row[0].isdecimal() and row[1].isdecimal()
    ]


def _number(text: str, divisor: float) -> float | None:
    """Return a figure of nvidia-smi in our unit; None for "[N/A]"."""
    try:
        return float(text) / divisor
    except ValueError:
        return None
