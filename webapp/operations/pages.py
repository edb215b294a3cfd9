"""The status page: errors, warnings and passed checks."""

from collections import Counter

from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from annotation.views.access import Request
from webapp.operations.health import Finding, Level
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
