"""The status page: errors, warnings and passed checks."""

import time
from collections import Counter
from collections.abc import Callable
from threading import Lock

from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import resolve
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from annotation.views.access import Request
from webapp.operations import reach
from webapp.operations.health import Finding, Level
from webapp.operations.metrics import PATH, may_scrape, metrics
from webapp.operations.state import look


@never_cache
@require_safe
def status(request: Request) -> HttpResponse:
    """Show what is wrong and the remedies; `?short` shows the first lines. For administrators."""
    if not request.user.is_superuser:
        raise PermissionDenied
    state = look()
    template = "operations/status_findings.html" if request.htmx else "operations/status.html"
    if "short" in request.GET:
        template = "operations/status_short.html"
    return render(
        request,
        template,
        {
            "worst": state.worst,
            "wrong": _named(state.of(Level.WRONG)),
            "attention": _named(state.of(Level.ATTENTION)),
            "fine": _named(state.of(Level.FINE)),
            "is_still": "still" in request.GET,
        },
    )


def _named(findings: list[Finding]) -> list[tuple[str, Finding]]:
    """Add an id that is stable between refreshes, by which htmx restores the focus."""
    seen: Counter[str] = Counter()
    named = []
    for finding in findings:
        seen[finding.subject] += 1
        named.append((f"status-{finding.subject}-{seen[finding.subject]}", finding))
    return named


# Health probes for load balancers and process managers, with few dependencies.
#
# They are answered before all other middleware: a probe has no allowed host name, no session, and speaks
# plain HTTP behind a proxy.

NEEDED = (reach.database, reach.migrations)
"""Without these no request can be answered: a load balancer should route elsewhere."""
MISSED = (reach.broker, reach.model_server, reach.disk)
"""Without these, or on a nearly full disk, people can still label while jobs wait: stopping the web server
would make it worse."""
_FRESH_SECONDS = 1.0
_WORDS = {Level.FINE: "ok", Level.ATTENTION: "attention", Level.WRONG: "failed"}


class Probes:
    """Middleware that answers /health/ itself, and /metrics for programs that may read it."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        view = _VIEWS.get(request.path_info)
        # Administrators read metrics with a session, which a later middleware loads.
        if view is None or (view is metrics and not may_scrape(request)):
            return self.get_response(request)
        request.resolver_match = resolve(request.path_info)
        return view(request)


class _Readiness:
    """The last result, cached briefly: anyone may ask, and every check costs connections."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._asked_at = float("-inf")
        self._answer: tuple[dict[str, object], int] = {}, 503

    def now(self) -> tuple[dict[str, object], int]:
        """Return the body and the status."""
        with self._lock:
            if time.monotonic() - self._asked_at > _FRESH_SECONDS:
                self._answer = self._ask()
                self._asked_at = time.monotonic()
            return self._answer

    def forget(self) -> None:
        """Drop the cached result."""
        self._asked_at = float("-inf")

    @staticmethod
    def _ask() -> tuple[dict[str, object], int]:
        needed = [check() for check in NEEDED]
        missed = [check() for check in MISSED]
        if any(finding.is_wrong for finding in needed):
            status = "not ready"
        else:
            status = "degraded" if any(finding.is_wrong for finding in missed) else "ready"
        body: dict[str, object] = {"status": status, "checks": _words([*needed, *missed])}
        return body, 503 if status == "not ready" else 200


readiness = _Readiness()


@login_not_required
@never_cache
@require_safe
def live(request: HttpRequest) -> HttpResponse:
    """Return 200: this process runs. No checks, since a restart repairs nothing else. For everyone."""
    return JsonResponse({"status": "live"})


@login_not_required
@never_cache
@require_safe
def ready(request: HttpRequest) -> HttpResponse:
    """Return 200 or 503 with the state of each part, without reasons. For everyone."""
    body, status = readiness.now()
    return JsonResponse(body, status=status)


_VIEWS: dict[str, Callable[[HttpRequest], HttpResponse]] = {
    "/health/live": live,
    "/health/ready": ready,
    PATH: metrics,
}


def _words(findings: list[Finding]) -> dict[str, str]:
    return {finding.subject: _WORDS[finding.level] for finding in findings}
