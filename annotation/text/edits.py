"""Edits of an annotator in a text, in code points, and the same as pieces to show.

Pure functions on texts. The edits of a correction, applied to the original, give the corrected text.
"""

import difflib
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from annotation.record.judgment import BY_HAND, Edit, Origin

# Words keep their combining marks, a line break of two characters stays one, and so do emoji with what
# modifies or joins them: no edit cuts through what a reader takes for one sign.
_TOKEN = re.compile(
    r"\r\n|[\r\n]|[^\S\r\n]+"
    r"|[\w\u0300-\u036f]+"
    r"|[\U0001f1e6-\U0001f1ff]{2}"
    r"|[^\w\s](?:[\u0300-\u036f\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff]|\u200d\S)*",
)
_LINE_BREAK = re.compile(r"\r\n|\r|\n")

_COMPARABLE = 40_000
"""Tokens times tokens beyond which a stretch without a common anchor counts as rewritten."""


@dataclass(frozen=True, slots=True)
class DiffPiece:
    """A stretch of the comparison of two texts, to be shown."""

    kind: Literal["same", "deleted", "inserted"]
    text: str


def edits(original: str, corrected: str) -> tuple[Edit, ...]:
    """The local edits that make `corrected` of `original`, in order and apart; none where they are equal.

    Words, spaces and signs are compared, never parts of a word. Two changed words with nothing but a
    space between them are one edit: so a person would tell it.
    """
    before, after = _tokens(original), _tokens(corrected)
    places = _places(before)
    result = []
    for low, high, new_low, new_high in _merged(_changed(before, after), before):
        low, high, new_low, new_high = _trimmed(before, after, low, high, new_low, new_high)
        start, end = places[low], places[high]
        replacement = "".join(after[new_low:new_high])
        result.append(Edit(start=start, end=end, quote=original[start:end], replacement=replacement))
    return tuple(result)


def applied(original: str, changes: Iterable[Edit]) -> str:
    """The text that `changes`, in order and apart, make of `original`."""
    parts = []
    place = 0
    for edit in changes:
        parts += [original[place : edit.start], edit.replacement]
        place = edit.end
    return "".join([*parts, original[place:]])


def pieces(original: str, corrected: str) -> tuple[DiffPiece, ...]:
    """Both texts in one, in reading order: what stayed, what went, what came."""
    result = []
    place = 0
    for edit in edits(original, corrected):
        result += [
            DiffPiece("same", original[place : edit.start]),
            DiffPiece("deleted", edit.quote),
            DiffPiece("inserted", edit.replacement),
        ]
        place = edit.end
    result.append(DiffPiece("same", original[place:]))
    return tuple(piece for piece in result if piece.text)


def sides(left: str, right: str) -> tuple[list[DiffPiece], list[DiffPiece]]:
    """Both texts beside each other; the pieces of each, joined, give it to the letter.

    What is only on the left is "deleted" there, what is only on the right "inserted".
    """
    both = pieces(left, right)
    on_left = [piece for piece in both if piece.kind != "inserted"]
    return on_left, [piece for piece in both if piece.kind != "deleted"]


def with_own_line_breaks(original: str, sent: str) -> str:
    """`sent` by a browser's text field, with the line breaks of `original` wherever it was left alone.

    A field sends every line break as CRLF, whatever stood there. New lines get the kind that the
    original begins with, else a line feed. A text that nobody touched comes back as it was.
    """
    usual = usual_line_break(original)
    plain, places = _with_line_feeds(original)
    changes = edits(plain, _LINE_BREAK.sub("\n", sent))
    return applied(
        original,
        [
            Edit(
                start=places[edit.start],
                end=places[edit.end],
                quote=original[places[edit.start] : places[edit.end]],
                replacement=edit.replacement.replace("\n", usual),
            )
            for edit in changes
        ],
    )


def usual_line_break(text: str) -> str:
    """Return the kind of line break that a text begins with; a line feed where it has none."""
    first = _LINE_BREAK.search(text)
    return first.group() if first else "\n"


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)


def _places(tokens: Sequence[str]) -> list[int]:
    """Return the start of each token, and the end of the last."""
    places = [0]
    for token in tokens:
        places.append(places[-1] + len(token))
    return places


def _with_line_feeds(text: str) -> tuple[str, list[int]]:
    """The text with every line break as a line feed, and for each of its places that of `text`."""
    parts = re.findall(r"\r\n|[\s\S]", text)
    plain = "".join("\n" if part in ("\r\n", "\r") else part for part in parts)
    return plain, _places(parts)


_Change = tuple[int, int, int, int]


def _changed(before: Sequence[str], after: Sequence[str]) -> list[_Change]:
    """Return the range of tokens that differ: [low, high) of the one, [low, high) of the other.

    Patience diff: words that stand once in both texts hold them together, and what lies between two of
    them is compared by itself. So a long text takes no longer than its parts.
    """
    changes: list[_Change] = []
    low = new_low = 0
    for anchor, new_anchor in [*_anchors(before, after), (len(before), len(after))]:
        for change in _changed_between(before[low:anchor], after[new_low:new_anchor]):
            changes.append(
                (low + change[0], low + change[1], new_low + change[2], new_low + change[3]),
            )
        low, new_low = anchor, new_anchor
    return changes


def _anchors(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int]]:
    """The longest run of tokens that stand once in each text and in the same order in both."""
    once, new_once = _standing_once(before), _standing_once(after)
    shared = [(once[token], new_once[token]) for token in once if token in new_once]
    # The longest increasing run of the second places: `ends` holds the lowest end of a run of each length.
    ends: list[int] = []
    runs: list[int] = []
    earlier: list[int | None] = []
    for number, (_, place) in enumerate(shared):
        length = bisect_left(ends, place)
        earlier.append(runs[length - 1] if length else None)
        ends[length : length + 1] = [place]
        runs[length : length + 1] = [number]
    chosen = []
    step = runs[-1] if runs else None
    while step is not None:
        chosen.append(shared[step])
        step = earlier[step]
    return chosen[::-1]


def _standing_once(tokens: Sequence[str]) -> dict[str, int]:
    counts = Counter(tokens)
    return {token: place for place, token in enumerate(tokens) if counts[token] == 1 and not token.isspace()}


def _changed_between(before: Sequence[str], after: Sequence[str]) -> list[_Change]:
    head = 0
    while head < min(len(before), len(after)) and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < min(len(before), len(after)) - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    rest, new_rest = before[head : len(before) - tail], after[head : len(after) - tail]
    if not rest and not new_rest:
        return []
    if len(rest) * len(new_rest) > _COMPARABLE:
        return [(head, head + len(rest), head, head + len(new_rest))]
    # A space is no ground on which to match two texts: every two texts have them in common.
    matcher = difflib.SequenceMatcher(isjunk=str.isspace, a=rest, b=new_rest, autojunk=False)
    return [
        (low + head, high + head, new_low + head, new_high + head)
        for tag, low, high, new_low, new_high in matcher.get_opcodes()
        if tag != "equal"
    ]


def _merged(changes: Iterable[_Change], before: Sequence[str]) -> list[_Change]:
    merged: list[_Change] = []
    for change in changes:
        if merged and all(
            token.isspace() and token.isprintable() for token in before[merged[-1][1] : change[0]]
        ):
            low, _, new_low, _ = merged.pop()
            change = (low, change[1], new_low, change[3])
        merged.append(change)
    return merged


def _trimmed(
    before: Sequence[str], after: Sequence[str], low: int, high: int, new_low: int, new_high: int
) -> _Change:
    while low < high and new_low < new_high and before[low] == after[new_low]:
        low, new_low = low + 1, new_low + 1
    while low < high and new_low < new_high and before[high - 1] == after[new_high - 1]:
        high, new_high = high - 1, new_high - 1
    return low, high, new_low, new_high


# Rewrites of a text from left to right, as edits of its original that keep their origins.
#
# A rewritten text is a row of runs: each keeps a stretch of the original, or replaces one. Together their
# stretches are the whole original, so the runs give the edits, and the edits the runs. Pure functions on
# texts.


@dataclass(frozen=True, slots=True)
class _RewrittenStretch:
    """A stretch of the rewritten text, and [start, end) of the original that stood there."""

    start: int
    end: int
    text: str
    origin: Origin | None = None
    """None for a stretch of the original that was kept."""

    def before(self, length: int) -> "_RewrittenStretch":
        end = self.start + length if self.origin is None else self.end
        return replace(self, end=end, text=self.text[:length])

    def after(self, length: int) -> "_RewrittenStretch":
        start = self.start + length if self.origin is None else self.end
        return replace(self, start=start, text=self.text[length:])


def is_faithful(original: str, changes: Sequence[Edit]) -> bool:
    """Return whether edits are in order, apart, within the original, and quote what stands there."""
    done = 0
    for edit in changes:
        if not done <= edit.start <= edit.end <= len(original):
            return False
        if original[edit.start : edit.end] != edit.quote:
            return False
        done = edit.end
    return True


def retyped(original: str, changes: Sequence[Edit], text: str) -> tuple[Edit, ...]:
    """Return the edits that make `text` of the original, after `changes` had made another text of it.

    Stretches that stayed keep their origin; the others were written by hand.
    """
    runs = _runs(original, changes)
    # From the end, so that the places of the edits before hold.
    for edit in reversed(edits(applied(original, changes), text)):
        runs = _spliced(runs, edit)
    return _edits(original, runs)


def _runs(original: str, changes: Iterable[Edit]) -> list[_RewrittenStretch]:
    runs, done = [], 0
    for edit in changes:
        runs += [
            _RewrittenStretch(done, edit.start, original[done : edit.start]),
            _RewrittenStretch(edit.start, edit.end, edit.replacement, edit.origin),
        ]
        done = edit.end
    runs.append(_RewrittenStretch(done, len(original), original[done:]))
    return [run for run in runs if run.origin is not None or run.text]


def _spliced(runs: Sequence[_RewrittenStretch], edit: Edit) -> list[_RewrittenStretch]:
    """Replace a stretch of the rewritten text by hand."""
    head, rest = _cut(runs, edit.start)
    gone, tail = _cut(rest, edit.end - edit.start)
    place = head[-1].end if head else 0
    span = next((run.origin.span for run in gone if run.origin and run.origin.span), None)
    by_hand = replace(BY_HAND, span=span)
    end = gone[-1].end if gone else place
    return [*head, _RewrittenStretch(place, end, edit.replacement, by_hand), *tail]


def _cut(
    runs: Sequence[_RewrittenStretch], at: int
) -> tuple[list[_RewrittenStretch], list[_RewrittenStretch]]:
    """Cut runs at a place of their text. What has no text there comes before."""
    head: list[_RewrittenStretch] = []
    for index, run in enumerate(runs):
        length = len(run.text)
        if length > at:
            if at:
                return [*head, run.before(at)], [run.after(at), *runs[index + 1 :]]
            return head, list(runs[index:])
        head.append(run)
        at -= length
    return head, []


def _edits(original: str, runs: Iterable[_RewrittenStretch]) -> tuple[Edit, ...]:
    changes = (
        Edit(
            start=run.start,
            end=run.end,
            quote=original[run.start : run.end],
            replacement=run.text,
            origin=run.origin,
        )
        for run in runs
        if run.origin is not None
    )
    return changing(changes)


def changing(changes: Iterable[Edit]) -> tuple[Edit, ...]:
    """Return the edits that change something."""
    return tuple(edit for edit in changes if edit.quote != edit.replacement)
