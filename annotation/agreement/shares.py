"""Shares with intervals: of items, of pairs, of triples."""

import math
from collections.abc import Sequence

import numpy as np

from annotation.agreement.bootstrap import RESAMPLES, estimate_of, ratio
from annotation.agreement.estimate import Estimate, Missing, absent

_NORMAL_97_5 = 1.959963984540054


def wilson_interval(hits: int, total: int) -> tuple[float, float]:
    """The 95 % score interval of a share of independent trials. Wilson 1927.

    (p + z²/2n ± z √(p (1 − p)/n + z²/4n²)) / (1 + z²/n), with p = hits/n.
    """
    square = _NORMAL_97_5**2 / total
    share = hits / total
    middle = (share + square / 2) / (1 + square)
    half = math.sqrt(share * (1 - share) * square + square**2 / 4) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def binomial_test(hits: int, total: int) -> float:
    """Two-sided exact p of `hits` of `total` fair coins: the chance of a count at least as far from half."""
    far = max(hits, total - hits)
    if 2 * far == total:
        return 1.0
    half = math.log(2) * total
    chances = (
        math.exp(math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1) - half)
        for k in range(far, total + 1)
    )
    return min(1.0, 2 * math.fsum(chances))


def share_of(
    hits_and_totals: Sequence[tuple[float, float]],
    *,
    missing: Missing = Missing.NO_DATA,
    resamples: int = RESAMPLES,
) -> Estimate:
    """Σ hits / Σ totals over items, with an interval over items: what hangs together in an item stays so."""
    kept = [(hits, total) for hits, total in hits_and_totals if total]
    if not kept:
        return absent(missing)
    return estimate_of(np.array(kept, dtype=np.float64), ratio, resamples=resamples)


def share_of_independent(results: Sequence[bool]) -> Estimate:
    """The share of items that are right, with Wilson's interval: one answer for each item."""
    if not results:
        return absent(Missing.NO_DATA)
    low, high = wilson_interval(sum(results), len(results))
    return Estimate(value=sum(results) / len(results), low=low, high=high, items=len(results))
