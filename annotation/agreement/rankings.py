"""Agreement of rankings that may have ties."""

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from annotation.agreement.bootstrap import RESAMPLES, estimate_of, ratio
from annotation.agreement.estimate import Estimate, Missing, absent


def kendall_tau_b(first: Sequence[float], second: Sequence[float]) -> float | None:
    """τ-b of two rankings of the same things; None where one of them is all ties.

    τ_b = (P − Q) / √((P + Q + X)(P + Q + Y)): P pairs in the same order, Q in opposite order, X tied in the
    first ranking alone, Y in the second alone. Kendall 1945. Two of rank infinity have no order and are not
    tied: a pair of which one ranking says nothing is left out.
    """
    concordant = decided_first = decided_second = 0
    for left, right in combinations(range(len(first)), 2):
        if any(ranking[left] == ranking[right] == math.inf for ranking in (first, second)):
            continue
        first_sign = (first[left] > first[right]) - (first[left] < first[right])
        second_sign = (second[left] > second[right]) - (second[left] < second[right])
        concordant += first_sign * second_sign
        decided_first += first_sign * first_sign
        decided_second += second_sign * second_sign
    if not decided_first or not decided_second:
        return None
    return concordant / math.sqrt(decided_first * decided_second)


def mean_tau_b(items: Sequence[Sequence[Sequence[float]]], *, resamples: int = RESAMPLES) -> Estimate:
    """τ-b averaged over the pairs of annotators of each item, and then over items.

    An item is the rankings that different people gave to the same things, in the same order. A pair of
    rankings of which one is all ties has no τ-b and is left out.
    """
    shared = [item for item in items if len(item) > 1]
    if not shared:
        return absent(Missing.NOBODY_SHARED)
    means = []
    for item in shared:
        taus = [tau for pair in combinations(item, 2) if (tau := kendall_tau_b(*pair)) is not None]
        if taus:
            means.append(sum(taus) / len(taus))
    if not means:
        return absent(Missing.ALL_TIED, items=len(shared))
    rows = np.column_stack([means, np.ones(len(means))])
    return estimate_of(rows, ratio, resamples=resamples)
