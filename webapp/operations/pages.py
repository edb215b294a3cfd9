"""The status page: what is wrong, what somebody should look at, and what is fine."""

from collections import Counter

from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from annotation.views.access import Request
from webapp.operations.findings import Finding, Level
from webapp.operations.state import look


@never_cache
@require_safe
def status(request: Request) -> HttpResponse:
    """For who administers this Rondo: what is wrong and what to do; with htmx only what changes."""
    if not request.user.is_superuser:
        raise PermissionDenied
    state = look()
    template = "operations/status_findings.html" if request.htmx else "operations/status.html"
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
    """Each with an id that it has at the next look too: by that htmx gives the focus back."""
    seen: Counter[str] = Counter()
    named = []
    for finding in findings:
        seen[finding.subject] += 1
        named.append((f"status-{finding.subject}-{seen[finding.subject]}", finding))
    return named
