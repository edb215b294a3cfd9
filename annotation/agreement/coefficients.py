"""Agreement on labels and rankings: α, κ, percent, τ-b, and whether the place on the page wins."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, Literal

import numpy as np

from annotation.agreement.estimate import Estimate, Missing, PositionBias, absent
from annotation.agreement.intervals import (
    RESAMPLES,
    Floats,
    Integers,
    binomial_test,
    estimate_of,
    percentile_interval,
    ratio,
    wilson_interval,
)

# ── Krippendorff's α ────────────────────────────────────────────────────────────────────


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


def alpha_of_sets(
    items: Sequence[Sequence[Sequence[frozenset[str]]]], *, resamples: int = RESAMPLES
) -> Estimate:
    """α over units whose values are sets, such as several choices, by the MASI distance.

    MASI: 1 − J · M with Jaccard's J = |A ∩ B| / |A ∪ B| and M = 1 for equal sets, 2/3 where one holds the
    other, 1/3 where each has something of its own, 0 for disjoint ones. Passonneau 2006, "Measuring agreement
    on set-valued items (MASI) for semantic and pragmatic annotation".
    """
    shared = [[unit for unit in item if len(unit) > 1] for item in items]
    shared = [item for item in shared if item]
    if not shared:
        return absent(Missing.NOBODY_SHARED)
    sets = sorted({value for item in shared for unit in item for value in unit}, key=sorted)
    if len(sets) < 2:
        return absent(Missing.ONE_VALUE, items=len(shared))
    place = {value: float(number) for number, value in enumerate(sets)}
    numbered = [[[place[value] for value in unit] for unit in item] for item in shared]
    distance = np.array([[masi_distance(left, right) for right in sets] for left in sets])
    counts = _value_counts(numbered, np.arange(len(sets), dtype=np.float64))
    rows = _coincidences(counts, np.repeat(np.arange(len(shared)), [len(item) for item in shared]))
    value = float(_alpha(rows.sum(axis=0)[None], distance[None])[0])
    low, high = percentile_interval(rows, lambda sums: _alpha(sums, distance[None]), resamples=resamples)
    return Estimate(value=value, low=low, high=high, items=len(shared))


def masi_distance(left: frozenset[str], right: frozenset[str]) -> float:
    """Return the MASI distance of two sets, 0 for equal ones and 1 for disjoint ones."""
    if left == right:
        return 0.0
    both = len(left & right)
    monotonicity = 2 / 3 if left < right or right < left else 1 / 3
    return 1 - both / len(left | right) * monotonicity if both else 1.0


def alpha_of_coincidences(sums: Floats, domain: Floats, level: Level) -> Floats:
    """α of flattened coincidence matrices, (resamples, V · V) → (resamples,)."""
    totals = sums.reshape(-1, len(domain), len(domain)).sum(axis=2)
    return _alpha(sums, _distances(totals, domain, level))


def _alpha(sums: Floats, distance: Floats) -> Floats:
    size = distance.shape[-1]
    observed = sums.reshape(-1, size, size)
    totals = observed.sum(axis=2)
    number = totals.sum(axis=1)[:, None, None]
    expected = totals[:, :, None] * totals[:, None, :] - totals[:, :, None] * np.eye(size)
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


# ── Pairs: percent agreement, κ ─────────────────────────────────────────────────────────


Labels = Mapping[Any, Hashable]
"""Annotator → their value of one unit."""


def percent_agreement(items: Sequence[Sequence[Labels]], *, resamples: int = RESAMPLES) -> Estimate:
    """The share of agreeing pairs of annotators, averaged over units.

    p_a = mean over units of Σ_c n_c (n_c − 1) / (n (n − 1)), where n people spoke and n_c said c. Units on
    which one person spoke play no part.
    """
    rows = _rows(items)
    if rows is None:
        return absent(Missing.NOBODY_SHARED)
    return estimate_of(rows, lambda sums: sums[:, 0] / sums[:, 1], resamples=resamples)


def fleiss_kappa(items: Sequence[Sequence[Labels]], *, resamples: int = RESAMPLES) -> Estimate:
    """Fleiss' κ, generalised to a number of annotators that differs between units.

    κ = (p_a − p_e) / (1 − p_e), with p_e = Σ_c π_c² and π_c the mean over units of the share of people who
    said c. Fleiss 1971; for differing numbers Gwet 2014, "Handbook of Inter-Rater Reliability", chapter 2,
    here on the units on which at least two spoke. For two annotators it is Scott's π (1955).
    """
    rows = _rows(items)
    if rows is None:
        return absent(Missing.NOBODY_SHARED)
    if rows.shape[1] < 4:
        return absent(Missing.ONE_VALUE, items=len(rows))

    def kappa(sums: Floats) -> Floats:
        agreed = sums[:, 0] / sums[:, 1]
        by_chance = ((sums[:, 2:] / sums[:, 1:2]) ** 2).sum(axis=1)
        result: Floats = (agreed - by_chance) / (1 - by_chance)
        return result

    return estimate_of(rows, kappa, resamples=resamples)


def cohen_kappa(
    items: Sequence[Sequence[Labels]], first: Hashable, second: Hashable, *, resamples: int = RESAMPLES
) -> Estimate:
    """Cohen's κ of two annotators on the units of which both spoke.

    κ = (p_o − p_e) / (1 − p_e), p_e = Σ_c p_first(c) p_second(c). Cohen 1960. Unlike Fleiss' it lets each of
    them have their own leanings.
    """
    both = [
        [(unit[first], unit[second]) for unit in item if first in unit and second in unit] for item in items
    ]
    both = [item for item in both if item]
    if not both:
        return absent(Missing.NOBODY_SHARED)
    domain = _domain(value for item in both for pair in item for value in pair)
    size = len(domain)
    if size < 2:
        return absent(Missing.ONE_VALUE, items=len(both))
    rows = np.zeros((len(both), size * size))
    for number, item in enumerate(both):
        for left, right in item:
            rows[number, domain[left] * size + domain[right]] += 1

    return estimate_of(rows, lambda sums: kappa_of_tables(sums.reshape(-1, size, size)), resamples=resamples)


def kappa_of_tables(tables: Floats) -> Floats:
    """Return Cohen's κ of tables of counts, (B, C, C) to (B,): rows by the first, columns by the second."""
    total = tables.sum(axis=(1, 2))
    agreed = np.trace(tables, axis1=1, axis2=2) / total
    by_chance = (tables.sum(axis=1) * tables.sum(axis=2)).sum(axis=1) / total**2
    result: Floats = (agreed - by_chance) / (1 - by_chance)
    return result


def _rows(items: Sequence[Sequence[Labels]]) -> Floats | None:
    """For each item with a shared unit: Σ agreement, units, then for each category Σ of its share."""
    shared = [[list(unit.values()) for unit in item if len(unit) > 1] for item in items]
    shared = [item for item in shared if item]
    if not shared:
        return None
    domain = _domain(value for item in shared for unit in item for value in unit)
    rows = np.zeros((len(shared), 2 + len(domain)))
    for number, item in enumerate(shared):
        for unit in item:
            people = len(unit)
            counts = [0] * len(domain)
            for value in unit:
                counts[domain[value]] += 1
            rows[number, 0] += sum(count * (count - 1) for count in counts) / (people * (people - 1))
            rows[number, 1] += 1
            rows[number, 2:] += np.array(counts) / people
    return rows


def _domain(values: Iterable[Hashable]) -> dict[Hashable, int]:
    ordered = sorted(set(values), key=str)
    return {value: place for place, value in enumerate(ordered)}


# ── Kendall's τ-b ───────────────────────────────────────────────────────────────────────


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


# ── Position ────────────────────────────────────────────────────────────────────────────


Outcomes = Sequence[tuple[int, int, int]]
"""(earlier position, later position, 1 earlier won | −1 later won | 0 neither), positions from 0."""


def position_bias(items: Sequence[Outcomes], *, resamples: int = RESAMPLES) -> PositionBias:
    """The bias over all pairs of all items; an item is the judgments of one comparison."""
    rows = [
        (
            sum(outcome > 0 for _, _, outcome in item),
            sum(outcome != 0 for _, _, outcome in item),
            len(item),
        )
        for item in items
    ]
    wins, decided, pairs = (sum(row[column] for row in rows) for column in range(3))
    if not decided:
        nothing = absent(Missing.NO_DATA if not pairs else Missing.ALL_TIED, items=len(items))
        return PositionBias(wins=0, decided=0, tied=pairs, estimate=nothing, over_items=nothing, p_value=None)
    counted = np.array([row[:2] for row in rows if row[1]], dtype=np.float64)
    low, high = wilson_interval(wins, decided)
    return PositionBias(
        wins=wins,
        decided=decided,
        tied=pairs - decided,
        estimate=Estimate(value=wins / decided, low=low, high=high, items=len(counted)),
        over_items=estimate_of(counted, ratio, resamples=resamples),
        p_value=binomial_test(wins, decided),
    )


def win_share_by_position(items: Sequence[Outcomes], *, resamples: int = RESAMPLES) -> list[Estimate]:
    """By position: the share of its decided pairs that the completion there won; a half without bias."""
    size = 1 + max((later for item in items for _, later, _ in item), default=-1)
    rows = np.zeros((size, len(items), 2))
    for number, item in enumerate(items):
        for earlier, later, outcome in item:
            if outcome:
                rows[[earlier, later], number, 1] += 1
                rows[earlier if outcome > 0 else later, number, 0] += 1
    counted = [place[place[:, 1] > 0] for place in rows]
    return [
        estimate_of(place, ratio, resamples=resamples) if len(place) else absent(Missing.NO_DATA)
        for place in counted
    ]
