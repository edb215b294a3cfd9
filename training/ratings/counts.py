"""Votes as counts: from lists to matrices, whether ratings can exist at all, and win rates."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from training.ratings.result import Floats, UnboundedRatingsError

_NAMED = 10


def win_rate_matrix(wins: ArrayLike, ties: ArrayLike | None = None) -> tuple[Floats, Floats]:
    """Return the share of its votes against j that i won, a tie as half a win, and those votes; both (n, n).

    NaN where two were never compared.
    """
    won, tied = as_counts(wins, ties)
    votes = won + won.T + tied
    with np.errstate(invalid="ignore"):
        return (won + tied / 2) / votes, votes


def as_counts(wins: ArrayLike, ties: ArrayLike | None) -> tuple[Floats, Floats]:
    """Both matrices as float64, `ties` of zeros for None; refuses what are no counts."""
    won = np.asarray(wins, dtype=np.float64)
    if won.ndim != 2 or won.shape[0] != won.shape[1] or not len(won):
        raise ValueError(f"wins must be a square matrix, not of shape {won.shape}")
    _refuse_other_than_counts(won, "wins")
    if ties is None:
        return won, np.zeros_like(won)
    tied = np.asarray(ties, dtype=np.float64)
    if tied.shape != won.shape:
        raise ValueError(f"ties {tied.shape} must have the shape of wins {won.shape}")
    _refuse_other_than_counts(tied, "ties")
    if not np.array_equal(tied, tied.T):
        raise ValueError("ties must be symmetric: ties[i, j] and ties[j, i] are one count")
    return won, tied


def _refuse_other_than_counts(counts: Floats, name: str) -> None:
    # One comparison refuses NaN, too.
    if not (counts.min() >= 0 and counts.max() < np.inf):
        raise ValueError(f"{name} must be counts: finite and not negative")
    if counts.diagonal().any():
        item = int(np.flatnonzero(counts.diagonal())[0])
        raise ValueError(f"{name}[{item}, {item}] compares item {item} with itself")


def refuse_unbounded(beaten: NDArray[np.bool_]) -> None:
    """Refuse votes of which no finite ratings are the likeliest; `beaten[i, j]`: i beat or tied with j.

    Without ties these are all votes in which the items fall into two groups of which one never lost to the
    other (Ford 1957): where `beaten` is not strongly connected. With ties it is necessary, not
    sufficient; what is left shows as a fit that runs away.
    """
    if _reaches_all(beaten) and _reaches_all(beaten.T):
        return
    groups, of_item = connected_components(csr_matrix(beaten), directed=True, connection="weak")
    if groups > 1:
        fewest = int(np.argmin(np.bincount(of_item)))
        outside = np.flatnonzero(of_item == fewest).tolist()
        raise UnboundedRatingsError(
            f"Items fall into {groups} groups that were never compared with one another; "
            f"{_named(outside)} stand apart.",
            items=outside,
        )
    groups, of_item = connected_components(csr_matrix(beaten), directed=True, connection="strong")
    between = beaten & (of_item[:, None] != of_item)
    extremes = []
    for group in range(groups):
        inside = of_item == group
        for verb, crossed in (("lost to", between[:, inside]), ("beat", between[inside])):
            if not crossed.any():
                extremes.append((int(inside.sum()), np.flatnonzero(inside).tolist(), verb))
    _, items, verb = min(extremes)
    raise UnboundedRatingsError(f"{_named(items)} never {verb} any other.", items=items)


def _reaches_all(beaten: NDArray[np.bool_]) -> bool:
    """Return whether a path leads from item 0 to every item."""
    reached = np.zeros(len(beaten), dtype=bool)
    reached[0] = True
    fresh = reached
    while fresh.any() and not reached.all():
        fresh = beaten[fresh].any(axis=0) & ~reached
        reached = reached | fresh
    return bool(reached.all())


def _named(items: list[int]) -> str:
    names = ", ".join(str(item) for item in items[:_NAMED])
    more = f" and {len(items) - _NAMED} more" if len(items) > _NAMED else ""
    return f"{'Item' if len(items) == 1 else 'Items'} {names}{more}"
