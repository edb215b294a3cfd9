"""Counts that the web processes of one machine share: each writes its own file, a scrape reads all of them.

The files are those of prometheus_client's multiprocess mode, read by its own collector. Its switch for that
mode is a variable of the environment, which every program started from here would inherit; the model server,
whose figures are its own, must not. A file that no process holds any more is taken over by the next one that
starts, so counts never go back and files do not pile up.
"""

import fcntl
import os
import struct
import uuid
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import IO

from prometheus_client.metrics_core import Metric
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector

_BYTES = {"counter": 1 << 18, "histogram": 1 << 21}
"""Size of a file: some thousand series. Their number is bounded, for a route is a name."""
_HEAD = 8
_BESIDE_A_KEY = 28
"""Its length, padding, value and time."""


def key_of(metric: str, sample: str, labels: dict[str, str], help_text: str) -> str:
    """What one series is called in a file."""
    key: str = mmap_key(metric, sample, list(labels), list(labels.values()), help_text)
    return key


class SharedCounts:
    """The counts of one kind (`counter` or `histogram`) of this process, in a file below `folder`.

    Not safe for several threads: callers hold a lock.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The lock says that somebody still writes here; it goes with the process, however that ends.
        # Another process that starts now may take the file for one left behind before it is locked.
        held = None
        while held is None:
            self._path = folder / f"{kind}_{uuid.uuid4().hex}.db"
            held = _locked(self._path)
        self._held = held
        # Written out whole: a page of a mapped file that finds no room on the disk kills its process.
        held.write(bytes(_BYTES[kind]))
        held.flush()
        self._file = MmapedDict(str(self._path))  # type: ignore[no-untyped-call]
        self._values: dict[str, float] = {}
        self._room = _BYTES[kind] - _HEAD
        for other in folder.glob(f"{kind}_*.db"):
            if other != self._path:
                self._take_over(other)

    def add(self, key: str, amount: float) -> None:
        """Count. A series for which the file has no room is not counted."""
        known = self._values.get(key)
        if known is None:
            self._room -= len(key.encode()) + _BESIDE_A_KEY
            if self._room < 0:
                return
        value = (known or 0.0) + amount
        self._values[key] = value
        self._file.write_value(key, value, 0.0)  # type: ignore[no-untyped-call]

    def knows(self, key: str) -> bool:
        """Whether it was counted before by this process."""
        return key in self._values

    def close(self) -> None:
        """Let go of the file, as the end of the process does."""
        self._file.close()  # type: ignore[no-untyped-call]
        self._held.close()

    def _take_over(self, path: Path) -> None:
        held = _locked(path)
        if held is None:
            return
        with held:
            try:
                read = MmapedDict.read_all_values_from_file(str(path))  # type: ignore[no-untyped-call]
                left = [(key, value) for key, value, *_ in read]
            except (OSError, RuntimeError, ValueError, struct.error):
                # Its process died before the file was whole.
                left = []
            path.unlink(missing_ok=True)
            for key, value in left:
                self.add(key, value)


def _locked(path: Path) -> IO[bytes] | None:
    """The file with a lock on it; None where another process has it, or took it away."""
    stream = path.open("ab")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(stream.fileno()).st_nlink:
            return stream
    except OSError:
        pass
    stream.close()
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Histogram:
    """What the series of one histogram are called."""

    ends: Sequence[float]
    """Upper ends of the buckets but the last, which has none."""
    buckets: tuple[str, ...]
    sum: str


class Series:
    """Counters and histograms of this process. Opened at the first count, so that a fork has its own."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process = 0
        self._folder: Path | None = None
        self._files: tuple[SharedCounts, ...] = ()

    def count(self, folder: Path, counter: str, histogram: Histogram, value: float) -> None:
        """Add 1 to a counter, and a value to a histogram."""
        with self._lock:
            if self._process != os.getpid() or self._folder != folder:
                self._open(folder)
            counting, timing = self._files
            counting.add(counter, 1.0)
            if not timing.knows(histogram.sum):
                # All buckets from the start: a quantile is read between two that are there.
                for bucket in histogram.buckets:
                    timing.add(bucket, 0.0)
            timing.add(histogram.buckets[bisect_left(histogram.ends, value)], 1.0)
            timing.add(histogram.sum, value)

    def _open(self, folder: Path) -> None:
        if self._process == os.getpid():
            for one in self._files:
                one.close()
        self._files = SharedCounts(folder, "counter"), SharedCounts(folder, "histogram")
        self._process, self._folder = os.getpid(), folder


def collect(folder: Path) -> list[Metric]:
    """What all processes counted, added up."""
    # One that takes over another's counts removes a file between the listing and the reading.
    for _ in range(10):
        files = sorted(map(str, folder.glob("*_*.db")))
        try:
            return list(MultiProcessCollector.merge(files))  # type: ignore[no-untyped-call]
        except (FileNotFoundError, struct.error):
            continue
    return []
