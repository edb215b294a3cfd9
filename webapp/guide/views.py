"""Pages of the guide."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import get_language
from django.views.decorators.http import require_safe

from webapp.guide.library import GuidePage, GuideSection, neighbours, pages, shelves

# Search over titles and text of the guide: sections that hold every word.

MOST = 20
"""Results of a search."""
_AROUND = 80
"""Characters of text shown on each side of the first hit."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A section that matches, with the text around the first word, split where words match."""

    page: GuidePage
    section: GuideSection
    snippet: Sequence[tuple[str, bool]]
    """Pieces of text, and whether each is one of the words."""

    @property
    def is_page(self) -> bool:
        """Return True for the beginning of a page."""
        return self.section.level == 1


def search(text: str) -> list[Hit]:
    """Return the best sections for `text`: title before heading before text."""
    words = [word for word in text.casefold().split() if word.strip("\0")][:8]
    if not words:
        return []
    pairs = sorted(_hits(words), key=lambda pair: -pair[0])
    return [hit for _score, hit in pairs[:MOST]]


def _hits(words: Sequence[str]) -> Iterator[tuple[int, Hit]]:
    for page in pages().values():
        title = page.title.casefold()
        for section in page.rendered.sections:
            heading, body = section.title.casefold(), section.text.casefold()
            if not all(word in title or word in heading or word in body for word in words):
                continue
            in_title = sum(word in title for word in words) if section.level == 1 else 0
            score = 20 * in_title + 8 * sum(word in heading for word in words)
            score += sum(min(body.count(word), 4) for word in words)
            if score:
                yield score, Hit(page, section, _snippet(section.text, words))


def _snippet(text: str, words: Sequence[str]) -> list[tuple[str, bool]]:
    pattern = re.compile("|".join(re.escape(word) for word in words), re.IGNORECASE)
    first = pattern.search(text)
    begin = max(0, first.start() - _AROUND) if first else 0
    end = min(len(text), (first.end() if first else 0) + 2 * _AROUND)
    shown = ("… " if begin else "") + text[begin:end] + (" …" if end < len(text) else "")
    pieces, at = [], 0
    for match in pattern.finditer(shown):
        pieces += [(shown[at : match.start()], False), (match.group(), True)]
        at = match.end()
    return [(piece, hit) for piece, hit in [*pieces, (shown[at:], False)] if piece]


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
