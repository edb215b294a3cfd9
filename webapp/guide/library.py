"""Pages of the guide: read from their files once per process.

`index.md` orders them: one heading per kind, and below it a list with a link to each page.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from webapp.guide.rendering import Rendered, render

FOLDER = Path(__file__).resolve().parent
KINDS = ("tutorials", "how-to", "reference", "explanation")
"""Folders of the guide, by the kinds of Diátaxis."""

_ENTRY = re.compile(r"^- \[(?P<title>[^\]]+)\]\((?P<path>[\w./-]+)\.md\)(?:: (?P<summary>.+))?$", re.M)
_KIND = re.compile(r"^## (.+)$", re.M)


@dataclass(frozen=True)
class Page:
    """A page of the guide."""

    kind: str
    name: str
    title: str
    summary: str

    @property
    def path(self) -> Path:
        """Return the page's file."""
        return FOLDER / self.kind / f"{self.name}.md"

    @property
    def rendered(self) -> Rendered:
        """Return its HTML and its sections in English."""
        return _rendered(self.path)

    def in_language(self, language: str) -> "Edition":
        """Return the page in a language, else in English: pages for labellers have a German file, too."""
        path = self.path.with_suffix(f".{language}.md")
        if path.is_file():
            rendered = _rendered(path)
            return Edition(language, rendered.sections[0].title, rendered)
        return Edition("en", self.title, self.rendered)


@dataclass(frozen=True, slots=True)
class Edition:
    """A page in one language."""

    language: str
    title: str
    rendered: Rendered


@cache
def _rendered(path: Path) -> Rendered:
    return render(path.read_text(encoding="utf-8"), folder=path.parent.name)


@dataclass(frozen=True, slots=True)
class Shelf:
    """Pages of one kind, in reading order."""

    kind: str
    title: str
    pages: Sequence[Page]


@cache
def shelves() -> Sequence[Shelf]:
    """Return all pages by kind, in the order of `index.md`."""
    return tuple(_shelves((FOLDER / "index.md").read_text(encoding="utf-8")))


def _shelves(index: str) -> Iterator[Shelf]:
    _introduction, *parts = _KIND.split(index)
    for title, entries in zip(parts[::2], parts[1::2], strict=True):
        pages = []
        for entry in _ENTRY.finditer(entries):
            kind, _, name = entry["path"].partition("/")
            pages.append(Page(kind, name, entry["title"], entry["summary"] or ""))
        if pages:
            yield Shelf(pages[0].kind, title, tuple(pages))


@cache
def pages() -> dict[tuple[str, str], Page]:
    """Return all pages by folder and name."""
    return {(page.kind, page.name): page for shelf in shelves() for page in shelf.pages}


def neighbours(page: Page) -> tuple[Page | None, Page | None]:
    """Return the page before and the page after this one, in reading order."""
    ordered = list(pages().values())
    at = ordered.index(page)
    before = ordered[at - 1] if at else None
    return before, ordered[at + 1] if at + 1 < len(ordered) else None
