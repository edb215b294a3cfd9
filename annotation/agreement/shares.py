"""Shares with intervals: of items, of pairs, of triples."""

from collections.abc import Sequence
from math import sqrt

import numpy as np

from annotation.agreement.bootstrap import RESAMPLES, estimate_of, ratio
from annotation.agreement.estimate import Estimate, Missing, absent

_NORMAL_97_5 = 1.959963984540054
"""Quantile of the standard normal distribution."""


def wilson_interval(hits: float, total: float) -> tuple[float, float]:
    """Return the 95 % score interval of a share of independent trials (Wilson 1927).

    hits: in [0, total], not necessarily whole: a tie is half a hit.
    """
    square = _NORMAL_97_5**2
    centre = hits + square / 2
    width = _NORMAL_97_5 * sqrt(hits * (total - hits) / total + square / 4)
    low = 0.0 if hits == 0 else (centre - width) / (total + square)
    high = 1.0 if hits == total else (centre + width) / (total + square)
    return low, high


def binomial_test(hits: int, total: int) -> float:
    """Return the two-sided exact p of `hits` of `total` fair coins."""
    # Imported late, and not scipy.stats: that takes a web process more than twice as long.
    from scipy.special import bdtr

    return min(1.0, 2 * float(bdtr(min(hits, total - hits), total, 0.5)))


def share_of(
    hits_and_totals: Sequence[tuple[float, float]],
    *,
    missing: Missing = Missing.NO_DATA,
    resamples: int = RESAMPLES,
) -> Estimate:
    """Σ hits / Σ totals over items, with an interval over items: what hangs together in an item stays so."""
    rows = [(hits, total) for hits, total in hits_and_totals if total]
    if not rows:
        return absent(missing)
    return estimate_of(np.array(rows, dtype=np.float64), ratio, resamples=resamples)


def share_of_independent(results: Sequence[bool]) -> Estimate:
    """The share of items that are right, with Wilson's interval: one answer for each item."""
    if not results:
        return absent(Missing.NO_DATA)
    low, high = wilson_interval(sum(results), len(results))
    return Estimate(value=sum(results) / len(results), low=low, high=high, items=len(results))
