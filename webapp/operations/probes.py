"""Answers that must come when little else works: to load balancers, to whoever restarts processes.

They are given before any other middleware looks at the request: a probe knows no host name, speaks plain HTTP
behind a proxy, and has no session.
"""

import time
from collections.abc import Callable
from threading import Lock

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import resolve
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from webapp.operations import reach
from webapp.operations.exposition import PATH, may_scrape, metrics
from webapp.operations.findings import Finding, Level

NEEDED = (reach.database, reach.migrations, reach.disk)
"""Without these no request can be answered: a balancer sends people elsewhere."""
MISSED = (reach.broker, reach.model_server)
"""Without these people go on judging, and work waits: taking the web away would only make it worse."""
_FRESH_SECONDS = 1.0
_WORDS = {Level.FINE: "ok", Level.ATTENTION: "attention", Level.WRONG: "failed"}


class Probes:
    """Middleware: answers the addresses under /health/ itself, and /metrics to programs that may read it."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        view = _VIEWS.get(request.path_info)
        # Administrators come to the figures with a session, which is looked up further inside.
        if view is None or (view is metrics and not may_scrape(request)):
            return self.get_response(request)
        request.resolver_match = resolve(request.path_info)
        return view(request)


class _Readiness:
    """The last answer, for a moment: anybody may ask, and each question costs connections."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._asked_at = float("-inf")
        self._answer: tuple[dict[str, object], int] = {}, 503

    def now(self) -> tuple[dict[str, object], int]:
        """The body of the answer and its status."""
        with self._lock:
            if time.monotonic() - self._asked_at > _FRESH_SECONDS:
                self._answer = self._ask()
                self._asked_at = time.monotonic()
            return self._answer

    def forget(self) -> None:
        """Ask anew next time."""
        self._asked_at = float("-inf")

    @staticmethod
    def _ask() -> tuple[dict[str, object], int]:
        needed = [check() for check in NEEDED]
        missed = [check() for check in MISSED]
        if any(one.is_wrong for one in needed):
            status = "not ready"
        else:
            status = "degraded" if any(one.is_wrong for one in missed) else "ready"
        body: dict[str, object] = {"status": status, "checks": _words([*needed, *missed])}
        return body, 503 if status == "not ready" else 200


readiness = _Readiness()


@login_not_required
@never_cache
@require_safe
def live(request: HttpRequest) -> HttpResponse:
    """For everyone: this process runs. Looks at nothing else: what else is broken no restart mends."""
    return JsonResponse({"status": "live"})


@login_not_required
@never_cache
@require_safe
def ready(request: HttpRequest) -> HttpResponse:
    """For everyone: whether this process can do its work, 200 or 503, and which part fails; not why."""
    body, status = readiness.now()
    return JsonResponse(body, status=status)


_VIEWS: dict[str, Callable[[HttpRequest], HttpResponse]] = {
    "/health/live": live,
    "/health/ready": ready,
    PATH: metrics,
}


def _words(findings: list[Finding]) -> dict[str, str]:
    return {one.subject: _WORDS[one.level] for one in findings}
