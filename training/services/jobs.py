"""Background jobs of rounds: events, the heartbeat of a step, the GPUs of this host."""

import csv
import shutil
import subprocess
import time
from typing import Any

from django.db.models import F
from django.urls import reverse

from annotation.choices import NotificationKind, WebhookEvent
from annotation.services import job_runs
from annotation.services.inbox import Event, notify_managers
from annotation.services.jobs import Heartbeat, write
from annotation.services.webhooks import tell
from training.choices import RoundState, StepKind
from training.models import Checkpoint, Round, RoundStep, Run

# ── Events for other programs ──


def tell_of_round(round_: Round, state: RoundState) -> None:
    """Tell that a round has come to a state."""
    tell(
        project_id=round_.project_id,
        event=WebhookEvent(f"round.{state.value}"),
        about=f"projects/{round_.project.slug}/rounds/{round_.number}/",
        data={"round": round_.number, "state": state.value},
    )


def tell_managers_of_round(round_: Round, kind: NotificationKind, *, key: str = "", error: str = "") -> None:
    """Put an event of a round into the inboxes of its managers; the same `key` reaches each of them once."""
    project = round_.project
    event = Event(
        kind=kind,
        key=f"round:{round_.pk}:{kind.value}{key}",
        subject=str(round_),
        excerpt=error,
        address=reverse("round", args=[project.slug, round_.number]),
    )
    notify_managers(project_id=project.pk, event=event)


def tell_of_run(run: Run, event: WebhookEvent) -> None:
    """Tell what became of a run."""
    tell(
        project_id=run.snapshot.project_id,
        event=event,
        about=f"runs/{run.pk}/",
        data={"run": run.pk, "name": run.name, "method": run.method},
    )


def tell_of_checkpoint(checkpoint: Checkpoint, event: WebhookEvent) -> None:
    """Tell what became of a checkpoint; one that belongs to no project is nobody's news."""
    if checkpoint.project_id is not None:
        tell(
            project_id=checkpoint.project_id,
            event=event,
            about=f"checkpoints/{checkpoint.name}/",
            data={"checkpoint": checkpoint.name, "kind": checkpoint.kind},
        )


# ── Heartbeat of a round's step, and the requests that stop it ──


class StopAskedError(Exception):
    """The round is to stop here: what is done is saved, and the step can be taken up again."""


class CancelledError(StopAskedError):
    """A person cancelled the round."""


class PausedError(StopAskedError):
    """A person paused the round; it goes on exactly here."""


class BudgetSpentError(StopAskedError):
    """The round trained for as long as its recipe allows."""


class NoRoomError(StopAskedError):
    """The disk is nearly full; the step goes on exactly here once there is room."""


class InterruptedStepError(Exception):
    """The step was interrupted from outside and can go on: it goes back to waiting."""


class StepHeartbeat(Heartbeat):
    """The heartbeat of a step, which also brings news of a pause or a cancel.

    Raises a `StopAskedError`, too, whenever it writes until the step ends. `seconds_left` is what the
    round's budget leaves for this step; None sets no limit.
    """

    job: RoundStep

    def __init__(self, step: RoundStep, *, seconds_left: float | None = None) -> None:
        super().__init__(step)
        self._ends_at = None if seconds_left is None else time.monotonic() + seconds_left

    def _write(self, progress: dict[str, object]) -> None:
        worked = F("seconds_worked") + (time.monotonic() - self._written_at)
        write(self.job, seconds_worked=worked, **progress)

    def _check(self) -> None:
        rounds = Round.objects.filter(pk=self.job.round_id)
        cancelled, paused = rounds.values_list("cancel_requested", "pause_requested").get()
        if cancelled:
            raise CancelledError
        if paused:
            raise PausedError
        if self._ends_at is not None and time.monotonic() > self._ends_at:
            raise BudgetSpentError
        if self.job.kind != StepKind.DECIDE and job_runs.is_low():
            raise NoRoomError(job_runs.sentence())


# ── GPUs of this host, as nvidia-smi lists them ──


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
