"""The page of search results, whose fragment the command palette shows, and the page of components."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from annotation.selectors import access
from annotation.statistics.plots import SHARE, bars
from webapp.navigation.search import search

COLOURS = ("text", "muted", "accent", "good", "warn", "bad")
"""Colours of text; each stands on the three surfaces of both themes."""
SURFACES = ("canvas", "surface", "raised")
SPACES = range(1, 9)
_ICONS = (
    *("house", "pencil-line", "database", "gauge", "repeat", "box", "columns-2", "settings"),
    "search",
    "flag",
)


@require_safe
def design(request: HttpRequest) -> HttpResponse:
    """Show the components that pages are made of. For everyone."""
    context = {
        "colours": COLOURS,
        "surfaces": SURFACES,
        "spaces": SPACES,
        "icons": _ICONS,
        "bars": bars([3, 5, 2, 8, 6, 9, 4], width=120, height=32),
        "mark": SHARE.interval(0.62, 0.55, 0.7),
    }
    return render(request, "navigation/design.html", context)


@require_safe
def results(request: HttpRequest) -> HttpResponse:
    """Search what one may open. For everyone."""
    user = request.user
    assert user.is_authenticated  # noqa: S101 - LoginRequiredMiddleware refuses all others
    text = request.GET.get("q", "")[:200]
    project = access.projects_for(user).filter(slug=request.GET.get("project", "").replace("\0", "")).first()
    groups = search(user=user, text=text, project=project)
    template = "navigation/results.html" if request.htmx else "navigation/search.html"  # type: ignore[attr-defined]
    return render(request, template, {"groups": groups, "text": text, "project": project})
