"""The outermost middleware: request ids, metrics, and fields of log lines.

The id is that of the proxy (X-Request-ID) if well formed, and is returned in the response; jobs caused by the
request log it too (`webapp.operations.jobs`).
"""

import atexit
import fcntl
import json
import logging
import os
import socket
import uuid
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import accumulate
from operator import add
from pathlib import Path
from threading import Lock, Timer
from time import perf_counter
from typing import IO, Any

from django.conf import settings
from django.core.signals import request_finished
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.utils.functional import LazyObject, empty
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from training.contract import log_lines

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets, dense below 0.3 s, which a labelling request should not exceed."""
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
REQUESTS, LATENCY = "rondo_web_requests", "rondo_web_request_seconds"
_SAVE_SECONDS = 1.0

Rows = dict[tuple[str, str, str], list[float]]
"""Route, method and status → requests in each bucket, then the sum of their seconds.

Routes are names, never paths, because user input must not create series.
"""


class RequestCounts:
    """Number and duration of this process's requests, shared with the machine's other web processes.

    Each process saves its rows to a file, once a second while they change; a scrape reads all. A process that
    starts takes over the files of ended processes, so files do not pile up and counts decrease only by the
    last second of a process that was killed.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._process, self._folder = 0, Path()
        self._rows: Rows = {}
        self._is_waiting = False
        atexit.register(self.save)

    def note(self, *, route: str, method: str | None, status: int, seconds: float) -> None:
        """Count an answered request. A full disk loses metrics, never a response."""
        folder = counts_folder()
        with self._lock, suppress(OSError):
            # Opened at the first count, so that a fork has its own.
            if (self._process, self._folder) != (os.getpid(), folder):
                self._open(folder)
            key = route, method if method in _METHODS else "other", str(status)
            row = self._rows.setdefault(key, [0.0] * (len(SECONDS) + 2))
            row[bisect_left(SECONDS, seconds)] += 1
            row[-1] += seconds
            if not self._is_waiting:
                self._is_waiting = True
                timer = Timer(_SAVE_SECONDS, self.save)
                timer.daemon = True
                timer.start()

    def save(self) -> None:
        """Write the rows where a scrape finds them."""
        with self._lock, suppress(OSError):
            self._is_waiting = False
            if self._process == os.getpid():
                rows = [[*key, row] for key, row in self._rows.items()]
                new = self._path.with_suffix(".new")
                new.write_text(json.dumps(rows))
                new.replace(self._path.with_suffix(".json"))

    def _open(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The lock ends with the process. Another starting process may take over the new file before it is
        # locked; then try another name.
        held = None
        while held is None:
            self._path = folder / f"{uuid.uuid4().hex}.lock"
            held = _locked(self._path)
        self._held, self._rows, self._is_waiting = held, {}, False
        for other in folder.glob("*.lock"):
            if other != self._path and (ended := _locked(other)):
                with ended, suppress(OSError, ValueError):
                    _add(self._rows, other.with_suffix(".json"))
                for suffix in (".json", ".new", ".lock"):
                    other.with_suffix(suffix).unlink(missing_ok=True)
        self._process, self._folder = os.getpid(), folder


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


def _add(rows: Rows, path: Path) -> None:
    for route, method, status, row in json.loads(path.read_text()):
        total = rows.setdefault((route, method, status), [0.0] * len(row))
        total[:] = map(add, total, row)


def counts_folder() -> Path:
    """Return the folder of this machine's counts, by host name because RONDO_HOME may be shared."""
    return Path(settings.RONDO_HOME) / "figures" / _HOST


_HOST = socket.gethostname()
request_counts = RequestCounts()


def collect() -> list[Metric]:
    """Return the sums of all processes' counts."""
    request_counts.save()
    requests = CounterMetricFamily(
        REQUESTS, "Requests by route, method and status.", labels=["route", "method", "status"]
    )
    latency = HistogramMetricFamily(
        LATENCY,
        "Seconds from a request's arrival at Rondo to its answer, waiting for its turn included.",
        labels=["route", "method"],
    )
    by_route: dict[tuple[str, str], list[float]] = {}
    for (route, method, status), row in sorted(_rows_of_all().items()):
        requests.add_metric([route, method, status], sum(row[:-1]))
        total = by_route.setdefault((route, method), [0.0] * len(row))
        total[:] = map(add, total, row)
    ends = [*map(str, SECONDS), "+Inf"]
    for labels, (*counts, seconds) in by_route.items():
        latency.add_metric(labels, list(zip(ends, accumulate(counts), strict=True)), seconds)
    return [requests, latency]


def _rows_of_all() -> Rows:
    # A process that takes over counts may remove a file between listing and reading.
    for _ in range(10):
        rows: Rows = {}
        with suppress(FileNotFoundError):
            for path in counts_folder().glob("*.json"):
                _add(rows, path)
            return rows
    return {}


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
        request_counts.note(
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
