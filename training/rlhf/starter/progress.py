"""Progress of the fetch for people and other processes, and errors with a remedy."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Protocol

from training.contract import write_atomically

PROGRESS_FILE = "progress.json"
"""File with the fetch's progress, in the models folder, for other processes to show."""

Report = Callable[[str, int, int], None]
"""Called with a status message, and bytes done of bytes in all (0 of 0 when unknown)."""
Stage = Literal["fetching", "ready", "failed"]


class Tell(Protocol):
    """Passes on what happens, as `Report` takes it."""

    def __call__(self, message: str, done: int = 0, total: int = 0) -> None: ...


class StarterError(RuntimeError):
    """The starter model cannot be had; the message says which way failed, why, and what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchProgress:
    """Progress of the fetch; `progress.json` in the models folder, replaced as a whole."""

    stage: Stage
    message: str
    """Status message for people."""
    done: int = 0
    """Bytes that have arrived."""
    total: int = 0
    """Bytes in all; 0 when unknown."""
    error: str = ""
    """Why it failed and what to do; empty unless `stage` is "failed"."""
    updated_at: float = 0.0
    """Seconds since the epoch."""


def read_progress(models_folder: Path) -> FetchProgress | None:
    """Return the last progress written, or None when no fetch has begun or the file is not readable."""
    try:
        values = json.loads((models_folder / PROGRESS_FILE).read_text(encoding="utf-8"))
        return FetchProgress(**values)
    except (OSError, ValueError, TypeError):
        return None


def write_progress(models_folder: Path, progress: FetchProgress) -> None:
    """Replace the progress file."""
    # A full disk must not hide, behind the failure to write the note, what the note would say.
    with contextlib.suppress(OSError):
        write_atomically(models_folder / PROGRESS_FILE, json.dumps(asdict(progress)) + "\n")
