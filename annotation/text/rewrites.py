"""Rewrites of a text from left to right, as edits of its original that keep their origins.

A rewritten text is a row of runs: each keeps a stretch of the original, or replaces one. Together their
stretches are the whole original, so the runs give the edits, and the edits the runs. Pure functions on texts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from annotation.record.judgment import BY_HAND, Edit, Origin
from annotation.text.edits import applied, edits


@dataclass(frozen=True, slots=True)
class _Run:
    """A stretch of the rewritten text, and [start, end) of the original that stood there."""

    start: int
    end: int
    text: str
    origin: Origin | None = None
    """None for a stretch of the original that was kept."""

    def before(self, length: int) -> "_Run":
        end = self.start + length if self.origin is None else self.end
        return replace(self, end=end, text=self.text[:length])

    def after(self, length: int) -> "_Run":
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


def _runs(original: str, changes: Iterable[Edit]) -> list[_Run]:
    runs, done = [], 0
    for edit in changes:
        runs += [
            _Run(done, edit.start, original[done : edit.start]),
            _Run(edit.start, edit.end, edit.replacement, edit.origin),
        ]
        done = edit.end
    runs.append(_Run(done, len(original), original[done:]))
    return [run for run in runs if run.origin is not None or run.text]


def _spliced(runs: Sequence[_Run], edit: Edit) -> list[_Run]:
    """Replace a stretch of the rewritten text by hand."""
    head, rest = _cut(runs, edit.start)
    gone, tail = _cut(rest, edit.end - edit.start)
    place = head[-1].end if head else 0
    span = next((run.origin.span for run in gone if run.origin and run.origin.span), None)
    by_hand = replace(BY_HAND, span=span)
    end = gone[-1].end if gone else place
    return [*head, _Run(place, end, edit.replacement, by_hand), *tail]


def _cut(runs: Sequence[_Run], at: int) -> tuple[list[_Run], list[_Run]]:
    """Cut runs at a place of their text. What has no text there comes before."""
    head: list[_Run] = []
    for index, run in enumerate(runs):
        length = len(run.text)
        if length > at:
            if at:
                return [*head, run.before(at)], [run.after(at), *runs[index + 1 :]]
            return head, list(runs[index:])
        head.append(run)
        at -= length
    return head, []


def _edits(original: str, runs: Iterable[_Run]) -> tuple[Edit, ...]:
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
