"""The outermost middleware: request ids, metrics, and fields of log lines.

The id is that of the proxy (X-Request-ID) if well formed, and is returned in the response; jobs caused by the
request log it too (`webapp.operations.jobs`).
"""

import fcntl
import logging
import os
import socket
import struct
import uuid
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import IO, Any

from django.conf import settings
from django.core.signals import request_finished
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.utils.functional import LazyObject, empty
from prometheus_client.metrics_core import Metric
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector

from training.contract import log_lines

# Request counts shared by the web processes of a machine: each writes a file, a scrape reads all.
#
# The files have the format of prometheus_client's multiprocess mode and are read by its collector. That
# mode is
# enabled by an environment variable, which the model server would inherit but must not use. A process that
# starts takes over the files of ended processes, so counts never decrease and files do not pile up.
#
# The middleware counts every request, in a few microseconds; `/metrics` reads. Routes are names, never
# paths,
# because user input must not create series.

_BYTES = {"counter": 1 << 18, "histogram": 1 << 21}
"""File size, enough for some thousand series. Their number is bounded, since a route is a name."""
_HEAD = 8
_BESIDE_A_KEY = 28
"""Bytes of length, padding, value and time."""


def key_of(metric: str, sample: str, labels: dict[str, str], help_text: str) -> str:
    """Return the key of a series in a file."""
    key: str = mmap_key(metric, sample, list(labels), list(labels.values()), help_text)
    return key


class SharedCounts:
    """The counts of one kind (`counter` or `histogram`) of this process, in a file below `folder`.

    Not thread-safe: callers hold a lock.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The lock marks the file as in use and ends with the process. Another starting process may
        # take over the new file before it is locked; then try another name.
        held = None
        while held is None:
            self._path = folder / f"{kind}_{uuid.uuid4().hex}.db"
            held = _locked(self._path)
        self._held = held
        # Allocate the whole file: writing to a mapped page without disk space kills the process.
        held.write(bytes(_BYTES[kind]))
        held.flush()
        self._file = MmapedDict(str(self._path))  # type: ignore[no-untyped-call]
        self._values: dict[str, float] = {}
        self._room = _BYTES[kind] - _HEAD
        for other in folder.glob(f"{kind}_*.db"):
            if other != self._path:
                self._take_over(other)

    def add(self, key: str, amount: float) -> None:
        """Add to a series; do nothing if the file has no room for a new one."""
        previous = self._values.get(key)
        if previous is None:
            self._room -= len(key.encode()) + _BESIDE_A_KEY
            if self._room < 0:
                return
        value = (previous or 0.0) + amount
        self._values[key] = value
        self._file.write_value(key, value, 0.0)  # type: ignore[no-untyped-call]

    def knows(self, key: str) -> bool:
        """Return True if this process has counted the series."""
        return key in self._values

    def close(self) -> None:
        """Close the file, as the end of the process does."""
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
                # Its process died before the file was complete.
                left = []
            path.unlink(missing_ok=True)
            for key, value in left:
                self.add(key, value)


def _locked(path: Path) -> IO[bytes] | None:
    """Open and lock the file; None if another process has locked or removed it."""
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
    """The keys of a histogram's series."""

    ends: Sequence[float]
    """Upper bounds of all buckets except the last, which has none."""
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
        """Add 1 to a counter and a value to a histogram."""
        with self._lock:
            if self._process != os.getpid() or self._folder != folder:
                self._open(folder)
            counting, timing = self._files
            counting.add(counter, 1.0)
            if not timing.knows(histogram.sum):
                # Create all buckets at once, because quantiles are interpolated between neighbours.
                for bucket in histogram.buckets:
                    timing.add(bucket, 0.0)
            timing.add(histogram.buckets[bisect_left(histogram.ends, value)], 1.0)
            timing.add(histogram.sum, value)

    def _open(self, folder: Path) -> None:
        if self._process == os.getpid():
            for file in self._files:
                file.close()
        self._files = SharedCounts(folder, "counter"), SharedCounts(folder, "histogram")
        self._process, self._folder = os.getpid(), folder


def collect(folder: Path) -> list[Metric]:
    """Return the sums of all processes' counts."""
    # A process that takes over counts may remove a file between listing and reading.
    for _ in range(10):
        files = sorted(map(str, folder.glob("*_*.db")))
        try:
            return list(MultiProcessCollector.merge(files))  # type: ignore[no-untyped-call]
        except (FileNotFoundError, struct.error):
            continue
    return []


SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets, dense below 0.3 s, which a labelling request should not exceed."""
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_REQUESTS = "rondo_web_requests"
_REQUESTS_HELP = "Requests by route, method and status."
_LATENCY = "rondo_web_request_seconds"
_LATENCY_HELP = "Seconds from a request's arrival at Rondo to its answer, waiting for its turn included."


class Requests:
    """Number and duration of requests by route."""

    def __init__(self) -> None:
        self._series = Series()
        self._folder_of: tuple[str, Path] = "", Path()

    def note(self, *, route: str, method: str | None, status: int, seconds: float) -> None:
        """Count an answered request. A full disk loses metrics, never a response."""
        method = method if method in _METHODS else "other"
        try:
            self._series.count(
                self._folder(), _counter(route, method, status), _histogram(route, method), seconds
            )
        except OSError:
            return

    def _folder(self) -> Path:
        home = str(settings.RONDO_HOME)
        if self._folder_of[0] != home:
            self._folder_of = home, figures_folder()
        return self._folder_of[1]


def figures_folder() -> Path:
    """Return the folder of this machine's counts, by host name because RONDO_HOME may be shared."""
    return Path(settings.RONDO_HOME) / "figures" / socket.gethostname()


@cache
def _counter(route: str, method: str, status: int) -> str:
    labels = {"route": route, "method": method, "status": str(status)}
    return key_of(_REQUESTS, f"{_REQUESTS}_total", labels, _REQUESTS_HELP)


@cache
def _histogram(route: str, method: str) -> Histogram:
    labels = {"route": route, "method": method}
    ends = [*map(str, SECONDS), "+Inf"]
    return Histogram(
        ends=SECONDS,
        buckets=tuple(
            key_of(_LATENCY, f"{_LATENCY}_bucket", {**labels, "le": end}, _LATENCY_HELP) for end in ends
        ),
        sum=key_of(_LATENCY, f"{_LATENCY}_sum", labels, _LATENCY_HELP),
    )


requests_of_this_process = Requests()


logger = logging.getLogger(__name__)

HEADER = "X-Request-ID"
_SLOW_SECONDS = 1.0
"""Slower requests get a log line."""


class RequestLine:
    """Middleware: assigns the id, measures the request, and logs it if it was slow."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        began = perf_counter()
        header = request.META.get("HTTP_X_REQUEST_ID", "")
        request_id = header if header and log_lines.is_request_id(header) else log_lines.new_request_id()
        fields: log_lines.Fields = {
            "request_id": request_id,
            "user": partial(_user_of, request),
            "route": partial(route_of, request),
        }
        log_lines.enter(fields)
        response = self.get_response(request)
        seconds = perf_counter() - began
        requests_of_this_process.note(
            route=route_of(request), method=request.method, status=response.status_code, seconds=seconds
        )
        if seconds > _SLOW_SECONDS:
            logger.info("%s took %.1f s, status %s", request.method, seconds, response.status_code)
        response.headers[HEADER] = request_id
        return response


# Not at the middleware's end: Django logs errors, and streams run, after that.
@receiver(request_finished)
def _forget(**_: Any) -> None:
    log_lines.forget()


def route_of(request: HttpRequest) -> str:
    """Return the name of the route, such as `label`; never the path, which may hold anything."""
    match = request.resolver_match
    return match.view_name or "unnamed" if match else "none"


def _user_of(request: HttpRequest) -> int | None:
    """Return the user's id; None if the user was not loaded, since logging must not query."""
    user = request.__dict__.get("user")
    if isinstance(user, LazyObject) and user.__dict__.get("_wrapped") is empty:
        return None
    pk: int | None = getattr(user, "pk", None)
    return pk
