"""Downloads of a run: its folder, and its metrics for TensorBoard."""

import math
import os
from collections.abc import Iterator

from django.conf import settings

from training.contract import CANCEL_FILE
from training.figures.folded_metrics import standing_rows
from training.files.run_folders import folder_of
from training.models import Run
from training.selectors.runs import folded_of
from training.services.runs.archives import secrets_in, zip_of_folder
from training.services.runs.event_files import event_file

_LEFT_OUT = (CANCEL_FILE, "lock", "cache")
"""Of a run's folder: marks between processes, and what can be computed again."""


def archive_of(run: Run) -> tuple[str, Iterator[bytes]]:
    """Everything in a run's folder as a ZIP archive, without secrets: its name, and its bytes."""
    secrets = secrets_in(
        dict(os.environ), known_secrets=[settings.SECRET_KEY, settings.RONDO_MODEL_SERVER_KEY]
    )
    folder = folder_of(run, whole=True)
    return f"{run.name}.zip", zip_of_folder(folder, name=run.name, secrets=secrets, left_out=_LEFT_OUT)


def events_of(run: Run) -> tuple[str, Iterator[bytes]]:
    """Return a run's metrics as an event file for TensorBoard: its name, and its bytes."""
    started_at = (run.started_at or run.created_at).timestamp()
    rows = standing_rows(folder_of(run), folded_of(run, most_seconds=math.inf))
    name = f"events.out.tfevents.{int(started_at)}.{run.name}"
    return name, event_file(rows, started_at=started_at)
