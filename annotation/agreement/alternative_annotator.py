"""The alternative-annotator test: whether a model may stand in for one of several people.

Calderon, Reichart & Dror (2025), "The Alternative Annotator Test for LLM-as-a-Judge" (arXiv 2501.10970). Each
person is left out in turn, and the model and this person are compared by how often they agree with the
others.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEAST_PEOPLE = 3
LEAST_ITEMS = 30
"""Items that a person shares with others and the model, from which on the mean of differences is near
normal."""
MARGIN = 0.15
"""ε: by how much a person may be better, as people cost more; the paper's value for skilled annotators."""
FALSE_DISCOVERIES = 0.05

Item = tuple[int, Mapping[int, int]]
"""One item: the model's value, and each person's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AlternativeAnnotator:
    """The outcome of the test."""

    people: int
    """People with enough items to be compared."""
    winning_rate: float | None = None
    """ω: share of people whom the model is shown to equal up to the margin; None with fewer than three."""
    advantage: float | None = None
    """ρ: mean probability that the model agrees with the others at least as well as the person does."""

    @property
    def winning_percent(self) -> str:
        """Return the winning rate in whole percents; empty without one."""
        return "" if self.winning_rate is None else f"{self.winning_rate:.0%}"

    @property
    def advantage_percent(self) -> str:
        """Return the advantage in whole percents; empty without one."""
        return "" if self.advantage is None else f"{self.advantage:.0%}"

    @property
    def may_replace(self) -> bool | None:
        """Return whether the model may stand in for a person: it equals at least half of them. None:
        unknown."""
        return None if self.winning_rate is None else self.winning_rate >= 0.5


def alternative_annotator(items: Sequence[Item], *, margin: float = MARGIN) -> AlternativeAnnotator:
    """Return whether the model of these items may stand in for one of their people.

    An item counts for a person who judged it with at least one other. The test of each person is a paired
    t-test of H0: the person is better by the margin or more, corrected over people by Benjamini and
    Yekutieli's procedure.
    """
    differences: dict[int, list[tuple[bool, bool]]] = defaultdict(list)
    for by_model, by_person in items:
        for person, value in by_person.items():
            others = [other for key, other in by_person.items() if key != person]
            if others:
                model_agrees = sum(other == by_model for other in others)
                person_agrees = sum(other == value for other in others)
                differences[person].append((model_agrees >= person_agrees, person_agrees >= model_agrees))
    enough = {person: pairs for person, pairs in differences.items() if len(pairs) >= LEAST_ITEMS}
    if len(enough) < LEAST_PEOPLE:
        return AlternativeAnnotator(people=len(enough))
    p_values = [_p_value(pairs, margin) for pairs in enough.values()]
    advantages = [statistics.fmean(model for model, _ in pairs) for pairs in enough.values()]
    return AlternativeAnnotator(
        people=len(enough),
        winning_rate=_rejected(p_values) / len(enough),
        advantage=statistics.fmean(advantages),
    )


def _p_value(pairs: Sequence[tuple[bool, bool]], margin: float) -> float:
    """Return the one-sided p-value of H0: the person's share less the model's is the margin or more."""
    from scipy.special import stdtr

    differences = [float(person) - float(model) for model, person in pairs]
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    if deviation == 0:
        return 0.0 if mean < margin else 1.0
    return float(stdtr(len(pairs) - 1, (mean - margin) / (deviation / math.sqrt(len(pairs)))))


def _rejected(p_values: Sequence[float]) -> int:
    """Return how many hypotheses Benjamini and Yekutieli's procedure rejects."""
    number = len(p_values)
    harmonic = sum(1 / rank for rank in range(1, number + 1))
    bounds = (
        rank
        for rank, p_value in enumerate(sorted(p_values), start=1)
        if p_value <= rank * FALSE_DISCOVERIES / (number * harmonic)
    )
    return max(bounds, default=0)
