"""Pages of the guide."""

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import get_language
from django.views.decorators.http import require_safe

from webapp.guide.library import neighbours, pages, shelves
from webapp.guide.search import search


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """List the pages, or what a search finds. For everyone."""
    text = request.GET.get("q", "")[:200].replace("\0", "")
    context = {"text": text, "hits": search(text), "shelves": shelves()}
    template = "guide/results.html" if request.htmx else "guide/index.html"  # type: ignore[attr-defined]
    return render(request, template, context)


@require_safe
def page(request: HttpRequest, kind: str, name: str) -> HttpResponse:
    """Show a page. For everyone."""
    page = pages().get((kind, name))
    if page is None:
        raise Http404
    before, after = neighbours(page)
    edition = page.in_language(get_language() or "en")
    headings = [section for section in edition.rendered.sections if section.level == 2]
    context = {
        "page": page,
        "edition": edition,
        "headings": headings if len(headings) > 1 else [],
        "before": before,
        "after": after,
        "shelves": shelves(),
    }
    return render(request, "guide/page.html", context)
