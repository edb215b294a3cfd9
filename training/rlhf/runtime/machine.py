"""Resources that a run uses on its host, reported every few seconds."""

from __future__ import annotations

import time

import psutil
import torch

from training.contract import MachineUse, append_machine_use
from training.rlhf.runtime.run_folder import RunFolder

_EVERY_SECONDS = 5.0


class Machine:
    """Writes `machine.jsonl`. Learns nothing and changes nothing of what is learned."""

    def __init__(self, folder: RunFolder, device: torch.device) -> None:
        self._folder = folder
        self._device = device
        self._process = psutil.Process()
        self._process.cpu_percent()  # what the next call tells counts from here
        self._told_at: float | None = None
        self._tokens = 0.0
        self._seconds = 0.0

    def note(self, *, step: int, tokens: float | None, seconds: float) -> None:
        """Take note of a step that took so many tokens and seconds; write a line when one is due."""
        if tokens is not None:
            self._tokens += tokens
            self._seconds += seconds
        now = time.monotonic()
        if not self._folder.writes or (self._told_at is not None and now - self._told_at < _EVERY_SECONDS):
            return
        append_machine_use(self._folder.path, self._use(step))
        self._told_at = now
        self._tokens = self._seconds = 0.0

    def _use(self, step: int) -> MachineUse:
        gpu_memory = gpu_total = None
        name = str(self._device)
        if self._device.type == "cuda":
            gpu_memory = torch.cuda.memory_reserved(self._device)
            gpu_total = torch.cuda.get_device_properties(self._device).total_memory
            name = f"{self._device} ({torch.cuda.get_device_name(self._device)})"
        return MachineUse(
            time=time.time(),
            step=step,
            device=name,
            memory_bytes=self._process.memory_info().rss,
            cpu_cores=round(self._process.cpu_percent() / 100, 2),
            tokens_per_second=round(self._tokens / self._seconds, 1) if self._seconds else None,
            gpu_memory_bytes=gpu_memory,
            gpu_memory_total_bytes=gpu_total,
        )
