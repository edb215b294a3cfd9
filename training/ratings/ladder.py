"""Significance of differences between neighbours, and Elo vote by vote."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from training.ratings.bradley_terry import Floats, Ratings


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Two items next to each other in the order, and whether the better one is better."""

    better: int
    worse: int
    difference: float
    """In log odds, not negative."""
    standard_error: float
    p_value: float
    """Two-sided, of no difference, by the normal distribution (Wald)."""
    p_holm: float
    """The same with Holm's correction (1979) for all pairs of neighbours; 0.05 and below is significant."""


def neighbours(ratings: Ratings) -> list[Difference]:
    """Return each item against the next one in the order, best first; n − 1 of them.

    The order was found from the same votes, so that p-values of neighbours err to the side of caution:
    they are next to each other because their ratings are close.
    """
    order = ratings.order
    better, worse = order[:-1], order[1:]
    variances = np.diag(ratings.covariance)
    covariances = ratings.covariance[better, worse]
    errors = np.sqrt(np.maximum(variances[better] + variances[worse] - 2 * covariances, 0.0))
    gaps = ratings.ratings[better] - ratings.ratings[worse]
    # 0 / 0 is two items of which nothing tells them apart.
    z = np.divide(gaps, errors, out=np.zeros_like(gaps), where=errors > 0)
    p_values = np.array([math.erfc(value / math.sqrt(2)) for value in z])
    corrected = holm(p_values)
    return [
        Difference(
            better=int(better[place]),
            worse=int(worse[place]),
            difference=float(gaps[place]),
            standard_error=float(errors[place]),
            p_value=float(p_values[place]),
            p_holm=float(corrected[place]),
        )
        for place in range(len(gaps))
    ]


def holm(p_values: Floats) -> Floats:
    """p-values (m,) corrected for their number (Holm 1979): the k-th smallest, from 0, times m − k, never
    below the one before it, at most 1."""
    order = np.argsort(p_values, kind="stable")
    factors = len(p_values) - np.arange(len(p_values))
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(np.maximum.accumulate(p_values[order] * factors), 1.0)
    return corrected


def elo(
    outcomes: Iterable[tuple[int, int, int]], *, items: int, k: float = 4.0, start: float = 1000.0
) -> Floats:
    """(items,) online Elo (1978): with each vote (left, right, outcome) points go from one to the other.

    k times what was unexpected: result − 1 / (1 + 10^((R_right − R_left) / 400)), a tie as half a win. For
    intuition only: the order of votes changes it, there is no interval. k = 4 is Chatbot Arena's, small
    because models do not change between votes; chess takes 10 to 40.
    """
    points = [start] * items
    for left, right, outcome in outcomes:
        expected = 1 / (1 + 10 ** ((points[right] - points[left]) / 400))
        moved = k * ((1 + outcome) / 2 - expected)
        points[left] += moved
        points[right] -= moved
    return np.array(points)
