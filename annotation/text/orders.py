"""Orders of responses in words."""

from collections.abc import Sequence
from itertools import pairwise

from django.utils.translation import gettext as _

# Texts in short, for lists and titles.


def shortened(text: str, length: int = 80) -> str:
    """Return a text in one line of at most `length` characters, cut between words where it has any."""
    line = " ".join(text.split())
    if len(line) <= length:
        return line
    kept = line[: length - 1]
    last_space = line.rfind(" ", 0, length)
    # Languages without spaces, and addresses, are cut where they are.
    return (kept[:last_space] if last_space > length // 2 else kept) + "…"


def in_order(places: Sequence[tuple[int, str]]) -> str:
    """`[(1, "B"), (2, "A"), (2, "C")]` → `B > A = C`."""
    ordered = sorted(places)
    text = ordered[0][1] if ordered else ""
    for (before, _letter), (rank, letter) in pairwise(ordered):
        text += f" {'=' if rank == before else '>'} {letter}"
    return text


def with_rest(order: str, rest: Sequence[str]) -> str:
    """Return an order with what it leaves unordered: `B > C; not ordered: A, D`."""
    if not rest:
        return order
    return _("%(order)s; not ordered: %(rest)s") % {"order": order, "rest": ", ".join(rest)}
