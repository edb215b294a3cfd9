"""Agreement on marked stretches of text: by characters, by marks, by category."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from annotation.agreement.bootstrap import RESAMPLES, estimate_of, ratio
from annotation.agreement.coefficients import krippendorff_alpha
from annotation.agreement.estimate import Estimate, Missing, absent
from annotation.agreement.records import Span


@dataclass(frozen=True, kw_only=True, slots=True)
class MarkedText:
    """One text that several people looked through, and what each of them marked; nothing is a mark, too."""

    item: Hashable
    length: int
    marks: Mapping[Any, Sequence[Span]]


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


def _places(marks: Sequence[Span]) -> Counter[tuple[int, int]]:
    return Counter((span.start, span.end) for span in marks)


def _matched(first: Sequence[Span], second: Sequence[Span]) -> list[tuple[Span, Span]]:
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
