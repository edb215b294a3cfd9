"""Agreement on marked stretches of text: by characters, by marks, by category."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from annotation.agreement.coefficients import krippendorff_alpha
from annotation.agreement.estimate import Estimate, Missing, absent
from annotation.agreement.intervals import RESAMPLES, SEED, Floats, draws, estimate_of, interval_of, ratio
from annotation.agreement.records import JudgedSpan


@dataclass(frozen=True, kw_only=True, slots=True)
class MarkedText:
    """One text that several people looked through, and what each of them marked; nothing is a mark, too."""

    item: Hashable
    length: int
    marks: Mapping[Any, Sequence[JudgedSpan]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanMatches:
    """Counts of the matching spans of two annotators.

    Shares are F1 = 2 · matched / (marks of one + marks of the other), summed over texts and pairs of
    people: agreement where nobody can count what was rightly left unmarked (Hripcsak & Rothschild 2005).
    """

    exact: Estimate
    """Same start and same end, whatever the category."""
    overlapping: Estimate
    """At least one character in common; each mark meets one other at most."""
    category: Estimate
    """Of the marks that overlap: how often the category is the same."""
    category_alpha: Estimate
    """The same, corrected for chance: Krippendorff's α, nominal, over marks that overlap."""


def span_matches(texts: Sequence[MarkedText], *, resamples: int = RESAMPLES) -> SpanMatches:
    """Agreement at the level of marks and of their categories, with intervals over items."""
    sums: dict[Hashable, list[float]] = {}
    categories: dict[Hashable, list[tuple[int, int]]] = {}
    for text in texts:
        for first, second in combinations(text.marks.values(), 2):
            if not first and not second:
                continue
            row = sums.setdefault(text.item, [0.0, 0.0, 0.0])
            matched = _matched(first, second)
            row[0] += 2 * (_places(first) & _places(second)).total()
            row[1] += 2 * len(matched)
            row[2] += len(first) + len(second)
            categories.setdefault(text.item, []).extend((a.category, b.category) for a, b in matched)
    if not sums:
        is_shared = any(len(text.marks) > 1 for text in texts)
        nothing = absent(Missing.NO_MARKS if is_shared else Missing.NOBODY_SHARED)
        return SpanMatches(exact=nothing, overlapping=nothing, category=nothing, category_alpha=nothing)
    rows = np.array(list(sums.values()))
    met = [pairs for pairs in categories.values() if pairs]
    same = np.array([[sum(a == b for a, b in pairs), len(pairs)] for pairs in met], dtype=np.float64)
    none_met = absent(Missing.NO_MATCHES, items=len(rows))
    return SpanMatches(
        exact=estimate_of(rows[:, [0, 2]], ratio, resamples=resamples),
        overlapping=estimate_of(rows[:, [1, 2]], ratio, resamples=resamples),
        category=estimate_of(same, ratio, resamples=resamples) if met else none_met,
        category_alpha=krippendorff_alpha(met, "nominal", resamples=resamples) if met else none_met,
    )


def _places(marks: Sequence[JudgedSpan]) -> Counter[tuple[int, int]]:
    return Counter((span.start, span.end) for span in marks)


def _matched(
    first: Sequence[JudgedSpan], second: Sequence[JudgedSpan]
) -> list[tuple[JudgedSpan, JudgedSpan]]:
    """The one-to-one matching of overlapping marks with the most matches, then the largest overlap.

    Overlap is intersection over union, plus a little where the category is the same, so that of two marks on
    one stretch the one that means the same is met.
    """
    if not first or not second:
        return []
    # Imported late: most pages of statistics have no spans to match.
    from scipy.optimize import linear_sum_assignment

    worth = np.zeros((len(first), len(second)))
    for row, a in enumerate(first):
        for column, b in enumerate(second):
            common = min(a.end, b.end) - max(a.start, b.start)
            if common > 0:
                union = max(a.end, b.end) - min(a.start, b.start)
                # A match outweighs any gain in overlap: every overlap is less than the whole number.
                worth[row, column] = (
                    len(first) + len(second) + common / union + 1e-6 * (a.category == b.category)
                )
    rows, columns = linear_sum_assignment(worth, maximize=True)
    return [
        (first[row], second[column]) for row, column in zip(rows, columns, strict=True) if worth[row, column]
    ]


# Krippendorff's α_U: whether people mark the same characters, corrected for chance.
#
# Krippendorff 1995, "On the reliability of unitizing contiguous data", Sociological Methodology 25, as in
# "Content Analysis" (2004), section 11.6. For one category on a continuum of length L with m people:
#
# D_o = Σ_i Σ_{j≠i} Σ_g Σ_h δ²_(ig)(jh) / (m (m − 1) L²)
# D_e = (2 / L) Σ_units [ (N − 1) / 3 · (2 b³ − 3 b² + b) + b² Σ_{gaps g ≥ b} (g − b + 1) ]
# / (m L (m L − 1) − Σ_units b (b − 1))
# α_U = 1 − D_o / D_e                  several categories: 1 − Σ_c D_o / Σ_c D_e
#
# b and g are the lengths of marked units and of gaps, N the number of units. δ² is the squared distance
# of the ends of two units that overlap, the squared length of a unit that lies in the other's gap, else 0.
#
# A project has many texts, and not the same people on each. The texts are laid end to end; a gap ends where
# its text ends; and a text that m people looked through counts 1 / (m − 1), as a unit of α does. With
# one text this is the formula above: there Σ δ² / (m (m − 1) L²) = [Σ δ² / (m − 1)] / (m L · L), and L
# cancels.

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Stretch = tuple[int, int]


@dataclass(slots=True)
class _CategoryTally:
    """An item's share of the sums of one category."""

    distance: float = 0.0
    units: Counter[int] = field(default_factory=Counter)
    gaps: Counter[int] = field(default_factory=Counter)


def unitizing_alpha(texts: Sequence[MarkedText], *, resamples: int = RESAMPLES) -> Estimate:
    """α_U over the texts that at least two people looked through, with an interval over items.

    Marks of one person and category that overlap count as one: units of a person may not overlap.
    """
    shared = [text for text in texts if len(text.marks) > 1 and text.length]
    if not shared:
        return absent(Missing.NOBODY_SHARED)
    items = list(dict.fromkeys(text.item for text in shared))
    place_of = {item: place for place, item in enumerate(items)}
    recorded = np.zeros(len(items))
    for text in shared:
        recorded[place_of[text.item]] += text.length * len(text.marks)
    categories = sorted({span.category for text in shared for marks in text.marks.values() for span in marks})
    if not categories:
        return absent(Missing.NO_MARKS, items=len(items))
    sums = [_CategorySums(shared, category, place_of) for category in categories]

    def statistic(weights: Floats) -> Floats:
        total = weights @ recorded
        observed, expected = np.sum([item_sums.disagreements(weights, total) for item_sums in sums], axis=0)
        result: Floats = 1 - observed / expected
        return result

    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(np.ones((1, len(items))))[0])
        if not np.isfinite(value):
            return absent(Missing.ONE_VALUE, items=len(items))
        if len(items) < 2:
            return Estimate(value=value, items=len(items))
        parts = draws(np.ones(len(items)), resamples=resamples, seed=SEED)
        low, high = interval_of(np.concatenate([statistic(part) for part in parts]))
    return Estimate(value=value, low=low, high=high, items=len(items))


class _CategorySums:
    """The sums of one category, item by item, ready to be weighted."""

    def __init__(self, texts: Sequence[MarkedText], category: int, place_of: dict[Hashable, int]) -> None:
        tallies = [_CategoryTally() for _ in place_of]
        for text in texts:
            _add(tallies[place_of[text.item]], text, category)
        self.distances = np.array([tally.distance for tally in tallies])
        self.units, self.unit_lengths = _histogram([tally.units for tally in tallies])
        self.gaps, self.gap_lengths = _histogram([tally.gaps for tally in tallies])
        b, g = self.unit_lengths[:, None], self.gap_lengths[None, :]
        self.in_gaps = b**2 * np.maximum(g - b + 1, 0)

    def disagreements(self, weights: Floats, total: Floats) -> tuple[Floats, Floats]:
        """Observed and expected, both times L, for each row of weights over items."""
        units, gaps = weights @ self.units, weights @ self.gaps
        b = self.unit_lengths
        among_units = (units.sum(axis=1) - 1) / 3 * (units @ (2 * b**3 - 3 * b**2 + b))
        among_gaps = ((units @ self.in_gaps) * gaps).sum(axis=1)
        chances = total * (total - 1) - units @ (b * (b - 1))
        return weights @ self.distances / total, 2 * (among_units + among_gaps) / chances


def _histogram(counted: Sequence[Counter[int]]) -> tuple["csr_matrix", Floats]:
    """Return counts of lengths by item: (items, lengths), and the lengths."""
    # Imported late: most pages of statistics have no spans to count.
    from scipy.sparse import csr_matrix

    lengths = sorted({length for counter in counted for length in counter})
    column_of = {length: column for column, length in enumerate(lengths)}
    rows = [row for row, counter in enumerate(counted) for _ in counter]
    columns = [column_of[length] for counter in counted for length in counter]
    numbers = [float(number) for counter in counted for number in counter.values()]
    shape = (len(counted), len(lengths))
    return csr_matrix((numbers, (rows, columns)), shape=shape), np.array(lengths, dtype=np.float64)


def _add(tally: _CategoryTally, text: MarkedText, category: int) -> None:
    if not any(span.category == category for marks in text.marks.values() for span in marks):
        tally.gaps[text.length] += len(text.marks)
        return
    units = [
        merged([(span.start, span.end) for span in marks if span.category == category])
        for marks in text.marks.values()
    ]
    gaps = [gaps_between(stretches, text.length) for stretches in units]
    for stretches, between in zip(units, gaps, strict=True):
        tally.units.update(end - start for start, end in stretches)
        tally.gaps.update(end - start for start, end in between)
    distance = sum(
        _distance(units[i], units[j], gaps[j]) for i in range(len(units)) for j in range(len(units)) if i != j
    )
    tally.distance += distance / (len(units) - 1)


def merged(stretches: Sequence[Stretch]) -> list[Stretch]:
    """The same characters in as few stretches as possible, in order."""
    union: list[Stretch] = []
    for start, end in sorted(stretches):
        if union and start < union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def gaps_between(stretches: Sequence[Stretch], length: int) -> list[Stretch]:
    """Return the gaps between the spans of a text of that length."""
    edges = [0, *(edge for stretch in stretches for edge in stretch), length]
    return [(edges[i], edges[i + 1]) for i in range(0, len(edges), 2) if edges[i] < edges[i + 1]]


def _distance(mine: Sequence[Stretch], yours: Sequence[Stretch], your_gaps: Sequence[Stretch]) -> float:
    """Σ δ² of my units with your units and gaps; from your side, what lies in my gaps is added."""
    total = 0.0
    for start, end in mine:
        for other_start, other_end in yours:
            if start < other_end and other_start < end:
                total += (start - other_start) ** 2 + (end - other_end) ** 2
        if any(gap_start <= start and end <= gap_end for gap_start, gap_end in your_gaps):
            # Seen from both sides, as a pair (unit, gap) and a pair (gap, unit).
            total += 2 * (end - start) ** 2
    return total
