"""The memory that each web process holds while people label, and its growth."""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass

import psutil
from scipy.stats import theilslopes

_EVERY_SECONDS = 5.0
_MEGABYTE = 1024**2


@dataclass(frozen=True, slots=True)
class Growth:
    """One process over the time that it was watched, without its first third, in which caches fill."""

    pid: int
    samples: int
    first_mb: float
    last_mb: float
    kb_a_minute: float
    """The median of the slopes between any two samples (Theil and Sen)."""
    interval: tuple[float, float]
    """Its 95 % interval."""

    @property
    def grows(self) -> bool:
        """Return whether the whole interval lies above zero and an hour of growth would exceed a megabyte."""
        return self.interval[0] > 0 and self.kb_a_minute * 60 > 1024


class MemoryWatch(threading.Thread):
    """Samples what each process below `pid` has for itself (USS: no page that it shares counts)."""

    def __init__(self, pid: int, *, every: float = _EVERY_SECONDS) -> None:
        super().__init__(daemon=True)
        self._master = psutil.Process(pid)
        self._every = every
        self._enough = threading.Event()
        self._found: dict[int, list[tuple[float, int]]] = {}

    def run(self) -> None:
        """Sample until `stop`."""
        while not self._enough.wait(self._every):
            for process in self._master.children(recursive=True):
                with suppress(psutil.Error):
                    sample = (time.monotonic(), process.memory_full_info().uss)
                    self._found.setdefault(process.pid, []).append(sample)

    def stop(self) -> list[Growth]:
        """Stop sampling and return one entry for each process that was there for at least three samples."""
        self._enough.set()
        self.join()
        samples_by_pid = {pid: samples[len(samples) // 3 :] for pid, samples in self._found.items()}
        return [growth_of(pid, samples) for pid, samples in samples_by_pid.items() if len(samples) > 2]


def growth_of(pid: int, samples: list[tuple[float, int]]) -> Growth:
    """The slope of samples (seconds, bytes) and its interval."""
    minutes = [seconds / 60 for seconds, _ in samples]
    kilobytes = [size / 1024 for _, size in samples]
    slope, _, low, high = theilslopes(kilobytes, minutes, 0.95)
    return Growth(
        pid=pid,
        samples=len(samples),
        first_mb=round(samples[0][1] / _MEGABYTE, 1),
        last_mb=round(samples[-1][1] / _MEGABYTE, 1),
        kb_a_minute=round(float(slope), 1),
        interval=(round(float(low), 1), round(float(high), 1)),
    )
