"""What this web process counts of every request; a few microseconds each.

Written by the middleware, read by `/metrics`. A route is its name, never a path: what people type must not
make new series.
"""

import socket
from functools import cache
from pathlib import Path

from django.conf import settings

from webapp.operations.counting import Histogram, Series, key_of

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper ends of the buckets. Close together below 0.3 s, which a labelling request should not exceed."""
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_REQUESTS = "rondo_web_requests"
_REQUESTS_HELP = "Requests by route, method and status."
_LATENCY = "rondo_web_request_seconds"
_LATENCY_HELP = "Seconds from a request's arrival at Rondo to its answer, waiting for its turn included."


class Requests:
    """How many requests came by which route, and how long they took."""

    def __init__(self) -> None:
        self._series = Series()
        self._folder_of: tuple[str, Path] = "", Path()

    def note(self, *, route: str, method: str | None, status: int, seconds: float) -> None:
        """Count a request that was answered. A disk that is full costs figures, never an answer."""
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
    """Where the web processes of this machine count: another's on a shared disk are scraped there."""
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
