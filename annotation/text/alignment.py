"""Alignment of two sequences by their longest common subsequence."""

from collections.abc import Hashable, Sequence


def aligned(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int | None, int | None]]:
    """Return rows of two sequences: what is equal stands in one row, all else in a row of its own.

    As many rows have both as a longest common subsequence has members. Between them what stands only on the
    left comes first. Hyyrö (2004): a row of the table is the bits of one number, so a thousand members cost
    milliseconds.
    """
    places: dict[Hashable, int] = {}
    for place, member in enumerate(right):
        places[member] = places.get(member, 0) | 1 << place
    whole = (1 << len(right)) - 1
    rows = [whole]
    for member in left:
        row = rows[-1]
        matches = row & places.get(member, 0)
        rows.append(((row + matches) | (row - matches)) & whole)
    pairs: list[tuple[int | None, int | None]] = []
    i, j = len(left), len(right)
    while i and j:
        if rows[i] >> (j - 1) & 1:
            j -= 1
            pairs.append((None, j))
        elif not rows[i - 1] >> (j - 1) & 1:
            i -= 1
            pairs.append((i, None))
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    pairs += [(place, None) for place in reversed(range(i))] if i else []
    pairs += [(None, place) for place in reversed(range(j))] if j else []
    return pairs[::-1]
