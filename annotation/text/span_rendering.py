"""Marks drawn into rendered answers, for pages that only show them.

Where one marks, `label-spans.js` draws them in the same way: a piece of text is cut where marks begin
or end, and each part stands in all marks that cover it.
"""

import html
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

# What `render_answer` gives a position: a piece of text, or a formula, which is marked as a whole.
_PLACED = re.compile(
    r'<span data-start="(?P<start>\d+)">(?P<text>[^<]*)</span>'
    r'|<span[^>]* data-start="(?P<formula>\d+)" data-source-length="(?P<length>\d+)"[^>]*>.*?</span>',
    re.DOTALL,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """[start, end) of a completion's text, in code points."""

    number: int
    """Under which the page tells more of it."""
    start: int
    end: int
    category: str
    """The key of its category, for its colour."""


def with_marks(markup: SafeString, marks: Sequence[Mark]) -> SafeString:
    """The HTML of `render_answer` with the marks drawn in it, each followed by its number."""
    pieces = list(_PLACED.finditer(markup))
    # The number stands behind the last piece that shows some of the mark.
    last = {
        mark.number: index for index, piece in enumerate(pieces) for mark in marks if _covers(mark, piece)
    }
    drawn = []
    place = 0
    for index, piece in enumerate(pieces):
        here = [mark for mark in marks if _covers(mark, piece)]
        ends = {mark.number for mark in here if last[mark.number] == index}
        drawn += [markup[place : piece.start()], _drawn(piece, here, ends) if here else piece.group()]
        place = piece.end()
    return mark_safe("".join([*drawn, markup[place:]]))  # noqa: S308 - it was safe, and so is what is added


def _extent(piece: re.Match[str]) -> tuple[int, int]:
    if piece["start"] is None:
        start = int(piece["formula"])
        return start, start + int(piece["length"])
    start = int(piece["start"])
    return start, start + len(html.unescape(piece["text"]))


def _covers(mark: Mark, piece: re.Match[str]) -> bool:
    start, end = _extent(piece)
    return mark.start < end and mark.end > start


def _drawn(piece: re.Match[str], marks: Sequence[Mark], ends: set[int]) -> str:
    start, end = _extent(piece)
    if piece["start"] is None:
        return _part(piece.group(), marks, [mark for mark in marks if mark.number in ends])
    text = html.unescape(piece["text"])
    cuts = sorted(
        {start, end, *(cut for mark in marks for cut in (mark.start, mark.end) if start < cut < end)}
    )
    parts = []
    for low, high in itertools.pairwise(cuts):
        around = [mark for mark in marks if mark.start <= low and mark.end >= high]
        ended = [mark for mark in around if mark.number in ends and min(mark.end, end) == high]
        parts.append(_part(html.escape(text[low - start : high - start], quote=False), around, ended))
    return f'<span data-start="{start}">{"".join(parts)}</span>'


def _part(shown: str, around: Sequence[Mark], ended: Sequence[Mark]) -> str:
    for mark in reversed(around):
        shown = format_html('<mark data-category="{}">{}</mark>', mark.category, mark_safe(shown))  # noqa: S308
    for mark in ended:
        shown += format_html('<sup><span class="visually-hidden">{} </span>{}</sup>', _("Span"), mark.number)
    return shown
