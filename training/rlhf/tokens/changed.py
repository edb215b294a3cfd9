"""The tokens in which a corrected answer differs from its original."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from training.rlhf.tokens.encoding import Answered

Places = tuple[tuple[int, int], ...]
"""Runs of tokens, [start, end) each, in order and apart."""

SHORTEST_KEPT = 4
"""So many equal tokens between two changes part them; fewer are chance, and belong to one change."""


def differing(before: Sequence[int], after: Sequence[int]) -> tuple[Places, Places]:
    """Return the places of `before` that an edit removed, and those of `after` that it wrote.

    Without them both sequences are equal. Common tokens at both ends are never among them.
    """
    start = _common(before, after)
    end = _common(before[start:][::-1], after[start:][::-1])
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    blocks = [block for block in matcher.get_matching_blocks() if block.size >= SHORTEST_KEPT]
    removed: list[tuple[int, int]] = []
    written: list[tuple[int, int]] = []
    old_at = new_at = 0
    for old_kept, new_kept, size in [
        *((block.a, block.b, block.size) for block in blocks),
        (len(old), len(new), 0),
    ]:
        removed.append((start + old_at, start + old_kept))
        written.append((start + new_at, start + new_kept))
        old_at, new_at = old_kept + size, new_kept + size
    return _filled(removed), _filled(written)


def learning_from_changes(corrected: Answered, original: Answered) -> tuple[Answered, Answered]:
    """Return both answers with the tokens that are learned from cut down to those that differ."""
    removed, written = differing(
        original.ids[original.learned_start :], corrected.ids[corrected.learned_start :]
    )
    return (
        corrected._replace(learned=_moved(written, corrected.masked)),
        original._replace(learned=_moved(removed, original.masked)),
    )


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _filled(places: Sequence[tuple[int, int]]) -> Places:
    return tuple((low, high) for low, high in places if low < high)


def _moved(places: Places, by: int) -> Places:
    return tuple((low + by, high + by) for low, high in places)
