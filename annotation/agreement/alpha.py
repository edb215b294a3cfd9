"""Krippendorff's α with an interval. Tests compare it with its definition and the `krippendorff` package.

α = 1 − D_o / D_e on the coincidence matrix o of all values that two people gave to one unit:
D_o = Σ_ck o_ck δ²_ck and D_e = Σ_ck n_c (n_k − [c = k]) δ²_ck / (n − 1), with δ² nominal (0 or 1), ordinal
((Σ_{g=c..k} n_g − (n_c + n_k) / 2)²) or interval ((c − k)²).

Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability".
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from annotation.agreement.bootstrap import RESAMPLES, Floats, Integers, percentile_interval
from annotation.agreement.estimate import Estimate, Missing, absent

Level = Literal["nominal", "ordinal", "interval"]
Unit = Sequence[float]
"""Values that different people gave to one thing, as numbers; a nominal value is any number."""


def krippendorff_alpha(
    items: Sequence[Sequence[Unit]], level: Level, *, resamples: int = RESAMPLES
) -> Estimate:
    """α over the units of all items, with an interval over items.

    An item holds units: the completions of a comparison, for instance. Units with fewer than two values
    play no part, as in the source. No value where nobody shared a unit, or where all gave the same value
    (no disagreement is expected then, and 0/0 is not agreement).
    """
    shared = [[unit for unit in item if len(unit) > 1] for item in items]
    shared = [item for item in shared if item]
    if not shared:
        return absent(Missing.NOBODY_SHARED)
    domain = np.array(sorted({value for item in shared for unit in item for value in unit}))
    if len(domain) < 2:
        return absent(Missing.ONE_VALUE, items=len(shared))
    counts = _value_counts(shared, domain)
    rows = _coincidences(counts, np.repeat(np.arange(len(shared)), [len(item) for item in shared]))
    value = float(alpha_of_coincidences(rows.sum(axis=0)[None], domain, level)[0])
    low, high = percentile_interval(
        rows, lambda sums: alpha_of_coincidences(sums, domain, level), resamples=resamples
    )
    return Estimate(value=value, low=low, high=high, items=len(shared))


def alpha_of_coincidences(sums: Floats, domain: Floats, level: Level) -> Floats:
    """α of flattened coincidence matrices, (resamples, V · V) → (resamples,)."""
    size = len(domain)
    observed = sums.reshape(-1, size, size)
    totals = observed.sum(axis=2)
    number = totals.sum(axis=1)[:, None, None]
    expected = totals[:, :, None] * totals[:, None, :] - totals[:, :, None] * np.eye(size)
    distance = _distances(totals, domain, level)
    disagreement = (observed * distance).sum(axis=(1, 2))
    by_chance = (expected / (number - 1) * distance).sum(axis=(1, 2))
    result: Floats = 1 - disagreement / by_chance
    return result


def _distances(totals: Floats, domain: Floats, level: Level) -> Floats:
    if level == "nominal":
        return (1 - np.eye(len(domain)))[None]
    # The ordinal distance is the one between the mid-ranks of the two values.
    places = domain[None] if level == "interval" else np.cumsum(totals, axis=1) - totals / 2
    squares: Floats = (places[:, :, None] - places[:, None, :]) ** 2
    return squares


def _value_counts(items: Sequence[Sequence[Unit]], domain: Floats) -> Floats:
    """Return the number of annotators by unit and value: (units, V)."""
    units = [unit for item in items for unit in item]
    lengths = [len(unit) for unit in units]
    values = np.array([value for unit in units for value in unit])
    cells = np.repeat(np.arange(len(units)), lengths) * len(domain) + np.searchsorted(domain, values)
    counted = np.bincount(cells, minlength=len(units) * len(domain))
    return counted.reshape(len(units), len(domain)).astype(np.float64)


def _coincidences(counts: Floats, item_of: Integers) -> Floats:
    """The coincidence matrix of each item, flattened: (items, V · V)."""
    units, size = counts.shape
    weights = 1 / (counts.sum(axis=1) - 1)
    pairs = counts[:, :, None] * counts[:, None, :] - counts[:, :, None] * np.eye(size)
    flat = (pairs * weights[:, None, None]).reshape(units, size * size)
    rows = np.zeros((int(item_of[-1]) + 1, size * size))
    np.add.at(rows, item_of, flat)
    return rows
