"""Reliability of annotators: a Bradley-Terry model with annotator ability. Knows no ORM.

The model is Crowd-BT (Chen, Bennett, Collins-Thompson & Horvitz 2013, "Pairwise ranking aggregation
in a crowdsourced setting", equation 3): annotator k, shown the completions i and j, prefers i with

    P(i ≻_k j) = η_k σ(s_i − s_j) + (1 − η_k) σ(s_j − s_i)

η = 1 answers as the quality of the texts demands, 0.5 by tossing a coin, below 0.5 against it.

**Where we depart from the paper.** It fits all scores s with all η. Here a pair is judged by two or
three people and its texts appear nowhere else, so there is a new unknown for every few answers, and
that joint fit takes every annotator for perfect (an incidental-parameter problem; measured in
CHANGELOG.md). So the difference d = s_i − s_j of each pair is integrated out, d ~ N(0, spread²):

    L(η, spread) = Π_pairs ∫ Π_votes P(vote | η, d) N(d; 0, spread²) dd

by Gauss-Hermite quadrature. Pairs of one ranking are treated as if they were independent (a
composite likelihood: Lindsay 1988), which leaves the estimate consistent; the intervals count
items, not pairs (the sandwich of Godambe 1960). Items that one person alone has judged say
nothing about anyone, and change nothing.

**Regularisation.** d has a prior, as the paper's virtual node gives to each score; η has one
around 0.8 with the weight of five answers, so that a newcomer starts there and a
fit that turns all signs around is never the better one; the spread has one around 2.5.

**Ties** are half a win each way.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_matrix
from scipy.special import expit

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

PRIOR_HITS = 4.0
PRIOR_MISSES = 1.0
PRIOR_SPREAD = 2.5
PRIOR_LOG_SPREAD_DEVIATION = 0.25
_QUADRATURE_POINTS = 41
_NORMAL_97_5 = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, kw_only=True, slots=True)
class Preference:
    """An annotator's preference between two completions."""

    item: Hashable
    """Unit that is judged as a whole: a comparison. Intervals take items for independent, pairs not."""
    annotator: Hashable
    left: Hashable
    right: Hashable
    outcome: int
    """1 where left is better, −1 where right is, 0 where neither."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reliability:
    """One annotator's η with its 95 % interval.

    Without a pair that someone else judged, too, it is the prior and its width, and `shared_pairs` is 0.
    """

    value: float
    low: float
    high: float
    pairs: int
    shared_pairs: int
    """Pairs that somebody else judged, too: only these carry information."""


def annotator_reliability(preferences: Sequence[Preference]) -> dict[Hashable, Reliability]:
    """η of everyone who judged a pair, from all that was said about pairs; empty for nothing.

    Deterministic: the same preferences give the same numbers.
    """
    if not preferences:
        return {}
    votes = _PreferenceMatrix(preferences)
    fitted = minimize(
        votes.loss_and_gradient,
        np.append(np.full(votes.people, math.log(PRIOR_HITS / PRIOR_MISSES)), math.log(PRIOR_SPREAD)),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 500, "ftol": 1e-11, "gtol": 1e-6},
    ).x
    deviations = np.sqrt(np.maximum(np.diag(votes.covariance(fitted)), 0.0))
    return {
        name: Reliability(
            value=float(expit(fitted[place])),
            low=float(expit(fitted[place] - _NORMAL_97_5 * deviations[place])),
            high=float(expit(fitted[place] + _NORMAL_97_5 * deviations[place])),
            pairs=int(votes.pairs_of[place]),
            shared_pairs=int(votes.shared_pairs_of[place]),
        )
        for place, name in enumerate(votes.names)
    }


def reliability_in_groups(
    preferences: Sequence[Preference], groups: Mapping[Hashable, str]
) -> dict[Hashable, Reliability]:
    """Return η of every annotator among all others, or among their group where it is higher there.

    A minority that is consistent with itself is not unreliable, and would weigh nothing by its agreement
    with all. groups: name by annotator; who is in none is compared with everyone. η within a group counts
    only where its members share pairs.
    """
    reliabilities = annotator_reliability(preferences)
    for group in sorted(set(groups.values())):
        within = [preference for preference in preferences if groups.get(preference.annotator) == group]
        for name, reliability in annotator_reliability(within).items():
            if reliability.shared_pairs and reliability.value > reliabilities[name].value:
                reliabilities[name] = reliability
    return reliabilities


class _PreferenceMatrix:
    """The preferences as one sparse matrix, and the penalised likelihood of η and spread on it.

    `counts[p, 2 k + s]` is how often annotator k preferred the first (s = 0) or the second (s = 1)
    completion of pair p; a tie counts half in each. All that depends on η and d is a table of
    2 K rows and one column for each quadrature point.
    """

    def __init__(self, preferences: Sequence[Preference]) -> None:
        self.names = sorted(
            {vote.annotator for vote in preferences}, key=lambda name: (str(type(name)), name)
        )
        self.people = len(self.names)
        places = {name: place for place, name in enumerate(self.names)}
        pairs: dict[tuple[Hashable, frozenset[Hashable]], int] = {}
        firsts: list[Hashable] = []
        rows, columns, weights, items = [], [], [], []
        item_numbers: dict[Hashable, int] = {}
        for preference in preferences:
            # Items with the same two texts ask the same thing; what they share is the texts.
            key = ("pair", frozenset((preference.left, preference.right)))
            pair = pairs.setdefault(key, len(pairs))
            if pair == len(firsts):
                firsts.append(preference.left)
                items.append(item_numbers.setdefault(preference.item, len(item_numbers)))
            outcome = preference.outcome if firsts[pair] == preference.left else -preference.outcome
            place = places[preference.annotator]
            for side, sign in ((0, 1), (1, -1)):
                if outcome != -sign:
                    rows.append(pair)
                    columns.append(2 * place + side)
                    weights.append(1.0 if outcome == sign else 0.5)
        shape = (len(pairs), 2 * self.people)
        self.counts: csr_matrix = csr_matrix((weights, (rows, columns)), shape=shape)
        self.counts.sum_duplicates()
        self.item_of: Integers = np.array(items, dtype=np.int64)
        self._count_pairs()
        points, masses = np.polynomial.hermite_e.hermegauss(_QUADRATURE_POINTS)
        self.points: Floats = points
        self.log_masses: Floats = np.log(masses / masses.sum())

    def _count_pairs(self) -> None:
        rows = np.repeat(np.arange(self.counts.shape[0]), np.diff(self.counts.indptr))
        judged = np.unique(np.stack([rows, self.counts.indices // 2]), axis=1)
        judges = np.bincount(judged[0], minlength=self.counts.shape[0])
        self.pairs_of = np.bincount(judged[1], minlength=self.people)
        shared = judged[:, judges[judged[0]] > 1]
        self.shared_pairs_of = np.bincount(shared[1], minlength=self.people)

    def _tables(self, parameters: Floats) -> tuple[Floats, Floats, Floats]:
        """log P of each vote at each point, and its derivatives by logit η_k and by log spread."""
        ability = np.repeat(expit(parameters[:-1]), 2)[:, None]
        spread = math.exp(parameters[-1])
        side = np.tile([1.0, -1.0], self.people)[:, None]
        wins = expit(side * spread * self.points)
        chance = ability * wins + (1 - ability) * (1 - wins)
        by_ability = (2 * wins - 1) * ability * (1 - ability) / chance
        by_spread = (2 * ability - 1) * wins * (1 - wins) * side * spread * self.points / chance
        return np.log(chance), by_ability, by_spread

    def _posterior(self, log_chance: Floats) -> tuple[Floats, Floats]:
        """log of each pair's marginal likelihood, and how likely each point is after its votes."""
        joint = self.counts @ log_chance + self.log_masses
        highest = joint.max(axis=1, keepdims=True)
        posterior = np.exp(joint - highest)
        total = posterior.sum(axis=1, keepdims=True)
        return (highest + np.log(total))[:, 0], posterior / total

    def loss_and_gradient(self, parameters: Floats) -> tuple[float, Floats]:
        """Minus the penalised log likelihood at (logit η_1 … logit η_K, log spread), and its gradient."""
        log_chance, by_ability, by_spread = self._tables(parameters)
        likelihoods, posterior = self._posterior(log_chance)
        expected = self.counts.T @ posterior
        gradient = np.append(
            (expected * by_ability).sum(axis=1).reshape(-1, 2).sum(axis=1), (expected * by_spread).sum()
        )
        penalty, slope = _penalty(parameters)
        return penalty - float(likelihoods.sum()), slope - gradient

    def _scores(self, parameters: Floats) -> Floats:
        """Each item's share of the gradient: items × (K + 1)."""
        log_chance, by_ability, by_spread = self._tables(parameters)
        _, posterior = self._posterior(log_chance)
        scores = np.zeros((int(self.item_of.max()) + 1, self.people + 1))
        rows = np.repeat(np.arange(self.counts.shape[0]), np.diff(self.counts.indptr))
        for start in range(0, len(rows), 20_000):
            part = slice(start, start + 20_000)
            row, column, weight = rows[part], self.counts.indices[part], self.counts.data[part]
            after = posterior[row] * weight[:, None]
            item = self.item_of[row]
            np.add.at(scores, (item, column // 2), (after * by_ability[column]).sum(axis=1))
            np.add.at(scores, (item, self.people), (after * by_spread[column]).sum(axis=1))
        return scores

    def covariance(self, parameters: Floats) -> Floats:
        """H⁻¹ (J + P) H⁻¹: H the curvature of the loss, J that of the items' scores, P the prior's."""
        step = 1e-5
        size = len(parameters)
        curvature = np.empty((size, size))
        for place in range(size):
            shift = np.zeros(size)
            shift[place] = step
            above = self.loss_and_gradient(parameters + shift)[1]
            below = self.loss_and_gradient(parameters - shift)[1]
            curvature[place] = (above - below) / (2 * step)
        curvature = (curvature + curvature.T) / 2
        scores = self._scores(parameters)
        ability = expit(parameters[:-1])
        prior = np.diag(
            np.append((PRIOR_HITS + PRIOR_MISSES) * ability * (1 - ability), PRIOR_LOG_SPREAD_DEVIATION**-2)
        )
        inverse = np.linalg.pinv(curvature)
        covariance: Floats = inverse @ (scores.T @ scores + prior) @ inverse
        return covariance


def _penalty(parameters: Floats) -> tuple[float, Floats]:
    """Minus the log priors of η (as if so many hits and misses had been seen) and of the spread."""
    logits, log_spread = parameters[:-1], parameters[-1]
    ability = expit(logits)
    off = (log_spread - math.log(PRIOR_SPREAD)) / PRIOR_LOG_SPREAD_DEVIATION
    hits = PRIOR_HITS * np.logaddexp(0, -logits) + PRIOR_MISSES * np.logaddexp(0, logits)
    slope = (PRIOR_HITS + PRIOR_MISSES) * ability - PRIOR_HITS
    return float(hits.sum() + off**2 / 2), np.append(slope, off / PRIOR_LOG_SPREAD_DEVIATION)


# The alternative-annotator test: whether a model may stand in for one of several people.
#
# Calderon, Reichart & Dror (2025), "The Alternative Annotator Test for LLM-as-a-Judge" (arXiv 2501.10970).
# Each person is left out in turn, and the model and this person are compared by how often they agree with
# the others.

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
