"""The memory gate: whether a round's runs fit into the machines that would train them.

The workers that take training report their device, precision and memory with their heartbeat. The machine
that answers web requests is never asked: it need not be one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from training.models import Worker
from training.services.runs.memory import Memory

_BYTES_OF_A_WEIGHT = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """One run that the round would make."""

    title: str
    base: str
    """Name of the base model."""
    method: str
    examples: int
    """Judgments or prompts that it passes over once."""
    steps: int
    memory: Memory | None
    """Of one process; None where the base model is not there yet, so nothing is known of its size."""
    seconds: float | None
    measured_on: str
    """The earlier run whose pace the time is reckoned with; empty where there is none."""
    tokens_per_second: float | None
    processes: int = 1
    """That train together on a machine, each on a GPU of its own where it has some."""

    def bytes_on(self, machine: Machine) -> int | None:
        """Return the bytes of the machine's GPU, or of its memory, that the run needs; None if not known."""
        if self.memory is None:
            return None
        return self.memory.total * (1 if machine.on_gpu else self.processes)

    @property
    def time(self) -> timedelta | None:
        """Return the estimated duration."""
        return None if self.seconds is None else timedelta(seconds=round(self.seconds))


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Hardware for training, as a worker reported it."""

    name: str
    """The host; empty where no worker has reported."""
    device: str
    """`cuda`, `mps` or `cpu`."""
    dtype: str
    """Precision of a frozen base there."""
    total_bytes: int
    """Of the device; 0 where it is not known."""
    available_bytes: int | None
    """Free at the last report; None where it is not known."""
    held_bytes: int = 0
    """Held by the model server on the same device. A trainer cannot have it."""

    @property
    def is_known(self) -> bool:
        """Return whether a worker has reported its memory."""
        return self.total_bytes > 0

    @property
    def on_gpu(self) -> bool:
        """Return whether it is the memory of a GPU."""
        return self.device == "cuda"

    @property
    def usable_bytes(self) -> int:
        """Return the most that a trainer can use."""
        return max(0, self.total_bytes - self.held_bytes)

    def weight_bytes(self, dtype: str = "auto") -> int:
        """Return the bytes of a weight of a frozen base; dtype: what the recipe asks for."""
        return _BYTES_OF_A_WEIGHT.get(self.dtype if dtype == "auto" else dtype, 4)


UNKNOWN = Machine(name="", device="cpu", dtype="float32", total_bytes=0, available_bytes=None)
"""No worker that takes training has reported."""


def training_machine() -> Machine:
    """Return the machine with the most memory among live training workers, else `UNKNOWN`."""
    silent_since = Now() - timedelta(seconds=settings.RONDO_STALE_SECONDS)
    live = Worker.objects.filter(heartbeat_at__gte=silent_since)
    machines = [
        machine_of(worker.name, worker.machine)
        for worker in live
        if settings.RONDO_TRAINING_QUEUE in worker.queues
    ]
    known = [machine for machine in machines if machine.is_known]
    return max(known, key=lambda machine: (machine.on_gpu, machine.usable_bytes), default=UNKNOWN)


def machine_of(worker: str, report: dict[str, Any]) -> Machine:
    """Return a worker's machine as reported: its largest GPU, else its memory."""
    host = worker.split(":", 1)[0]
    held = int(report.get("model_server_bytes") or 0)
    gpus = [gpu for gpu in report.get("gpus") or () if gpu.get("memory_total_bytes")]
    if gpus:
        gpu = max(gpus, key=lambda device: float(device["memory_total_bytes"]))
        total, used = int(gpu["memory_total_bytes"]), gpu.get("memory_bytes")
        return Machine(
            name=host,
            device="cuda",
            dtype=report.get("dtype") or "bfloat16",
            total_bytes=total,
            available_bytes=None if used is None else total - int(used),
            held_bytes=held,
        )
    total = int(report.get("memory_total_bytes") or 0)
    return Machine(
        name=host,
        device=report.get("device") or "cpu",
        dtype=report.get("dtype") or "float32",
        total_bytes=total,
        available_bytes=total - int(report.get("memory_bytes") or 0) if total else None,
        held_bytes=held,
    )


def too_large(runs: Sequence[PlannedRun], machine: Machine) -> Iterator[str]:
    """Runs that cannot fit, each with the remedy."""
    for run in runs:
        needed = run.bytes_on(machine)
        if machine.is_known and needed is not None and needed > machine.usable_bytes:
            yield _(
                "The %(run)s needs about %(needed)s GiB of memory, and %(machine)s has %(total)s for "
                "training: lower micro_batch_tokens or max_tokens, set gradient_checkpointing, or train "
                "fewer layers."
            ) % {
                "run": run.title,
                "needed": gib(needed),
                "machine": machine.name,
                "total": gib(machine.usable_bytes),
            }


def tight(runs: Sequence[PlannedRun], machine: Machine) -> Iterator[str]:
    """Runs of which it is not sure that they fit."""
    if not machine.is_known:
        yield _("No worker that trains has reported yet: whether its memory suffices is not known.")
    for run in runs:
        available, needed = machine.available_bytes, run.bytes_on(machine)
        if needed is None:
            yield _("The base model is not there yet: how much memory the %(run)s needs is not known.") % {
                "run": run.title
            }
        elif available is not None and available < needed <= machine.usable_bytes:
            yield _("The %(run)s needs about %(needed)s GiB of memory, and %(free)s are free now.") % {
                "run": run.title,
                "needed": gib(needed),
                "free": gib(available),
            }


def gib(size: int) -> str:
    """Bytes in GiB with one digit."""
    return f"{size / 2**30:.1f}"
