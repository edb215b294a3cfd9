"""Rows of workers: signs of life and the load of their hosts, for the status page and metrics."""

import logging
import platform
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
from django.conf import settings
from django.db import DatabaseError, InterfaceError, close_old_connections, connection
from django.db.models.functions import Now
from django.utils import timezone

from annotation.services.jobs import worker_name
from training.models import Worker
from training.services.jobs import gpu_bytes_by_process, gpus
from training.services.runs.runs import version_of_rondo

logger = logging.getLogger(__name__)

ALIVE_FILE = "worker-alive"
"""Below RONDO_HOME: as old as the last heartbeat. Health checks of containers look at it."""
_FORGET_AFTER = timedelta(days=1)
_LOOK_AT_THE_MACHINE_SECONDS = 15.0
_MODEL_SERVER = "training.serving"
"""The module that a model server's command line names."""
_HAS_MPS = (platform.system(), platform.machine()) == ("Darwin", "arm64")


def _touch(file: Path) -> None:
    """Set a file's time to now; a full disk is reported elsewhere."""
    with suppress(OSError):
        file.touch()


class WorkerHeartbeat:
    """Writes one worker's row, and the time of a file, every `RONDO_HEARTBEAT_SECONDS`.

    It does so on a thread of its own, until it is stopped.
    """

    def __init__(self, *, queues: Sequence[str], concurrency: int) -> None:
        self.name = worker_name()
        self._queues = sorted(queues)
        self._concurrency = concurrency
        # What is on the disk may change while this process goes on with what it read.
        self._version = version_of_rondo()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="worker-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End in good order: the row goes."""
        self._stopping.set()
        self._thread.join(10)

    def _go_on(self) -> None:
        machine: dict[str, Any] = {}
        looked_at = float("-inf")
        while True:
            if time.monotonic() - looked_at >= _LOOK_AT_THE_MACHINE_SECONDS:
                machine, looked_at = machine_use(), time.monotonic()
            try:
                close_old_connections()
                note_worker(
                    name=self.name,
                    queues=self._queues,
                    concurrency=self._concurrency,
                    version=self._version,
                    machine=machine,
                )
                _touch(Path(settings.RONDO_HOME) / ALIVE_FILE)
            except (DatabaseError, InterfaceError):
                # The page will say that nothing is heard of this worker, and that is true.
                connection.close()
            if self._stopping.wait(settings.RONDO_HEARTBEAT_SECONDS):
                break
        try:
            forget_worker(name=self.name)
        except (DatabaseError, InterfaceError) as error:
            logger.warning("the worker's row stays until it is forgotten: %s", error)
        finally:
            connection.close()


def note_worker(
    *, name: str, queues: Sequence[str], concurrency: int, version: str, machine: dict[str, Any]
) -> None:
    """Say that a worker lives. Rows of workers that were silent for a day go."""
    values = {
        "queues": list(queues),
        "concurrency": concurrency,
        "version": version,
        "machine": machine,
        "clock_ahead": clock_ahead(),
    }
    if not Worker.objects.filter(name=name).update(heartbeat_at=Now(), **values):
        Worker.objects.filter(heartbeat_at__lt=Now() - _FORGET_AFTER).delete()
        Worker.objects.create(name=name, started_at=Now(), heartbeat_at=Now(), **values)


def forget_worker(*, name: str) -> None:
    """Delete the row of a worker that has ended."""
    Worker.objects.filter(name=name).delete()


def clock_ahead() -> float:
    """Seconds that this machine's clock is ahead of the database's, within the time of one question.

    0 for a database that is a file: it has no clock of its own.
    """
    if connection.vendor != "postgresql":
        return 0.0
    before = timezone.now()
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        there = cursor.fetchone()[0]
    after = timezone.now()
    ahead: float = (before + (after - before) / 2 - there).total_seconds()
    # What the question took may lie on either side.
    slack = (after - before).total_seconds() / 2
    return 0.0 if abs(ahead) <= slack else ahead


def machine_use() -> dict[str, Any]:
    """Device and precision of training, load of the processors since the last look (in cores), memory in
    bytes, what of the device's memory the model server holds, and every NVIDIA GPU."""
    memory = psutil.virtual_memory()
    nvidia_gpus = gpus()
    device = "cuda" if nvidia_gpus else "mps" if _HAS_MPS else "cpu"
    return {
        # As the trainer chooses them for device and dtype "auto".
        "device": device,
        "dtype": "float32" if device == "cpu" else "bfloat16",
        "model_server_bytes": model_server_bytes(on_gpu=bool(nvidia_gpus)),
        "cpu_cores": round(psutil.cpu_percent() / 100 * (psutil.cpu_count() or 1), 2),
        "memory_bytes": memory.total - memory.available,
        "memory_total_bytes": memory.total,
        "gpus": nvidia_gpus,
    }


def model_server_bytes(*, on_gpu: bool) -> int:
    """Bytes that model servers of this machine hold: of its GPUs where it has some, else of its memory."""
    servers = [
        process
        for process in psutil.process_iter(["cmdline", "memory_info"])
        if _MODEL_SERVER in (process.info["cmdline"] or ())
    ]
    if not on_gpu:
        return sum(process.info["memory_info"].rss for process in servers if process.info["memory_info"])
    pids = {process.pid for process in servers}
    return sum(size for pid, size in gpu_bytes_by_process() if pid in pids)
