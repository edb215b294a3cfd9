"""Intervals: Wilson's for shares, percentile intervals of the bootstrap over items."""

from collections.abc import Callable, Iterator, Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from annotation.agreement.estimate import Estimate, Missing, absent

# Percentile intervals by resampling items (Efron & Tibshirani 1993, chapter 13).
#
# Every statistic here is a function of sums over items. So an item is one row of numbers, a resample is a
# weighted sum of rows, and a thousand resamples are one matrix product.

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Statistic = Callable[[Floats], Floats]
"""Sums over items (resamples, columns) → one value for each resample."""

RESAMPLES = 1000
SEED = 20131
_AT_ONCE = 100
_LEAST_FINITE_SHARE = 0.9


def draws(multiplicities: Floats, *, resamples: int, seed: int) -> Iterator[Floats]:
    """Yield the number of draws of each distinct row, (some resamples, rows) at a time.

    To draw n items with replacement is to draw from their distinct rows with chances in proportion to
    how often each occurs: the same distribution, and far fewer numbers.
    """
    generator = np.random.default_rng(seed)
    total = int(multiplicities.sum())
    for start in range(0, resamples, _AT_ONCE):
        size = min(_AT_ONCE, resamples - start)
        yield generator.multinomial(total, multiplicities / total, size=size).astype(np.float64)


def percentile_interval(
    rows: Floats, statistic: Statistic, *, resamples: int = RESAMPLES, seed: int = SEED
) -> tuple[float | None, float | None]:
    """The 2.5 % and 97.5 % points of `statistic` over resamples of `rows` (items, columns).

    Resamples without a value (all tied, for instance) are left out; no interval where they are
    more than a tenth, or where there is one item only.
    """
    if len(rows) < 2:
        return None, None
    distinct, multiplicities = np.unique(rows, axis=0, return_counts=True)
    parts = draws(multiplicities.astype(np.float64), resamples=resamples, seed=seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.concatenate([statistic(part @ distinct) for part in parts])
    return interval_of(values)


def interval_of(values: Floats) -> tuple[float | None, float | None]:
    """The percentile interval of resampled values; none where too many of them are not numbers."""
    finite = values[np.isfinite(values)]
    if len(finite) < _LEAST_FINITE_SHARE * len(values) or not len(finite):
        return None, None
    low, high = np.percentile(finite, [2.5, 97.5])
    return float(low), float(high)


def estimate_of(
    rows: Floats,
    statistic: Statistic,
    *,
    missing: Missing = Missing.ONE_VALUE,
    resamples: int = RESAMPLES,
) -> Estimate:
    """The statistic of all `rows` with its interval; absent with `missing` where it is not a number."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(rows.sum(axis=0, keepdims=True))[0])
    if not np.isfinite(value):
        return absent(missing, items=len(rows))
    low, high = percentile_interval(rows, statistic, resamples=resamples)
    return Estimate(value=value, low=low, high=high, items=len(rows))


def ratio(sums: Floats) -> Floats:
    """The first column over the second."""
    result: Floats = sums[:, 0] / sums[:, 1]
    return result


# Shares with intervals: of items, of pairs, of triples.

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
