"""Agreement on pairs of completions, with "neither is better" as a category of its own."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from annotation.agreement.bootstrap import RESAMPLES, Floats, estimate_of
from annotation.agreement.estimate import Estimate, Missing, absent

Labels = Mapping[Any, Hashable]
"""Annotator → what they said of one unit."""


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

    def kappa(sums: Floats) -> Floats:
        table = sums.reshape(-1, size, size)
        total = table.sum(axis=(1, 2))
        agreed = np.trace(table, axis1=1, axis2=2) / total
        by_chance = (table.sum(axis=1) * table.sum(axis=2)).sum(axis=1) / total**2
        result: Floats = (agreed - by_chance) / (1 - by_chance)
        return result

    return estimate_of(rows, kappa, resamples=resamples)


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
