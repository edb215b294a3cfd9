"""A Bayesian linear reward on features: posterior by Laplace's approximation. NumPy alone.

A judgment is one or more choices: of a pair the winner against the loser (Bradley & Terry 1952), of a ranking
every completion against those below it (Luce 1959, Plackett 1975). Of a choice among rows x₁ … x_m of the
feature table the first is chosen with probability exp(θ·x₁) / Σ exp(θ·x_j). The prior is θ ~ N(0, I / λ), λ
the precision with the highest marginal likelihood (MacKay 1992). The posterior is taken for the normal
distribution around its mode (Laplace's approximation), N(θ̂, H⁻¹), H the Hessian of the negative log
posterior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.floating]
Rows = NDArray[np.int64]

NOBODY = -1
"""In a table of choices: a place that a shorter choice leaves empty."""

PRECISIONS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Precisions of the prior that the marginal likelihood chooses from, for standardised features."""

WIDEST = 3.0
"""Deviations at which standardised features are cut."""

_MOST_STEPS = 30
_DONE = 1e-9


@dataclass(frozen=True, slots=True)
class Choices:
    """Choices among rows of a feature table."""

    table: Rows
    """(C, M) rows of each choice, the chosen one first, then `NOBODY` where it has fewer."""
    weight: Values
    """(C,) weight of each choice; 1 counts it once."""


@dataclass(frozen=True, slots=True)
class Posterior:
    """Posterior of the reward: θ ~ N(mean, covariance)."""

    mean: Values
    """(d,)"""
    covariance: Values
    """(d, d)"""
    precision: float
    """Of the prior."""
    evidence: float
    """Log marginal likelihood, by Laplace's approximation."""


def standardised(table: NDArray[np.floating]) -> Values:
    """Return columns with mean 0 and deviation 1, cut at three deviations; a constant one becomes 0.

    Uncut, whatever seeks information asks about the oddest completions, and learns the reward of oddities.
    """
    spread = table.std(0)
    safe = np.where(spread > 1e-6, spread, np.inf)
    columns: Values = np.clip((table - table.mean(0)) / safe, -WIDEST, WIDEST).astype(np.float32)
    return columns


def choices_of(rankings: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Choices:
    """Return the choices of rankings, each as (rows, ranks): rank 1 best, equal ranks tied.

    Completions that tie are not chosen against each other, so a ranking of ties alone says nothing.
    """
    return table_of([choice for rows, ranks in rankings for choice in sets_of(rows, ranks)])


def sets_of(rows: Sequence[int], ranks: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the choices of one ranking: each the row that was chosen, then those that it was chosen from."""
    sets = [
        (row, *(other for other, worse in zip(rows, ranks, strict=True) if worse > rank))
        for row, rank in zip(rows, ranks, strict=True)
    ]
    return [choice for choice in sets if len(choice) > 1]


def table_of(choices: Sequence[tuple[int, ...]]) -> Choices:
    """Return choices as a table."""
    most = max(map(len, choices), default=2)
    table = np.full((len(choices), most), NOBODY, dtype=np.int64)
    for index, choice in enumerate(choices):
        table[index, : len(choice)] = choice
    return Choices(table, np.ones(len(choices)))


def fit(
    features: Values,
    choices: Choices,
    *,
    precisions: Sequence[float] = PRECISIONS,
    start: Values | None = None,
) -> Posterior:
    """Return the posterior at the precision with the highest marginal likelihood.

    features: (rows, d), standardised. start: where to look for the mode first, such as the mode before a few
    more judgments came. The likelihood has one peak over the precisions as a rule: from the strongest on,
    weaker ones are tried until one is worse.
    """
    best: Posterior | None = None
    for precision in sorted(precisions, reverse=True):
        posterior = fit_at(features, choices, precision, start=best.mean if best is not None else start)
        if best is not None and posterior.evidence < best.evidence:
            break
        best = posterior
    if best is None:
        raise ValueError("no precision is given to choose from")
    return best


def fit_at(features: Values, choices: Choices, precision: float, *, start: Values | None = None) -> Posterior:
    """Return the posterior at one precision, its mode by Newton's method with halved steps."""
    size = features.shape[1]
    theta = np.zeros(size) if start is None else start.copy()
    of_two = choices.table.shape[1] == 2 and len(choices.table)
    chosen = _Pairs(features, choices) if of_two else _Chosen(features, choices)
    cost, gradient, hessian = chosen.at(theta, precision)
    for _ in range(_MOST_STEPS):
        step = np.linalg.solve(hessian, gradient)
        if gradient @ step < _DONE:
            break
        length = 1.0
        while length > 1e-6 and chosen.cost(theta - length * step, precision) > cost:
            length /= 2
        theta = theta - length * step
        cost, gradient, hessian = chosen.at(theta, precision)
    covariance = np.linalg.inv(hessian)
    _, log_det = np.linalg.slogdet(hessian)
    evidence = -cost + size / 2 * np.log(precision) - log_det / 2
    return Posterior(theta, (covariance + covariance.T) / 2, precision, float(evidence))


class _Pairs:
    """Choices between two, which their differences tell whole."""

    def __init__(self, features: Values, choices: Choices) -> None:
        self.weight = choices.weight
        chosen, other = features[choices.table[:, 0]], features[choices.table[:, 1]]
        self.differences = chosen.astype(np.float64) - other

    def cost(self, theta: Values, precision: float) -> float:
        """Return the negative log posterior, up to a constant."""
        lead = self.differences @ theta
        return float(self.weight @ np.logaddexp(0, -lead)) + precision / 2 * float(theta @ theta)

    def at(self, theta: Values, precision: float) -> tuple[float, Values, Values]:
        """Return the negative log posterior with gradient and Hessian."""
        lost = 0.5 * (1 - np.tanh(self.differences @ theta / 2))
        gradient = precision * theta - self.differences.T @ (self.weight * lost)
        curved = (self.weight * lost * (1 - lost))[:, None] * self.differences
        hessian = self.differences.T @ curved + precision * np.eye(len(theta))
        return self.cost(theta, precision), gradient, hessian


class _Chosen:
    """The rows that were chosen among, as far as they are used."""

    def __init__(self, features: Values, choices: Choices) -> None:
        self.weight = choices.weight
        there = choices.table != NOBODY
        # Of the empty places row 0 is read, with a probability of 0.
        self.mask = np.where(there, 0.0, -np.inf)
        self.stack: Values | None = None
        if len(choices.table):
            self.stack = features[np.where(there, choices.table, 0)].astype(np.float64)

    def cost(self, theta: Values, precision: float) -> float:
        """Return the negative log posterior, up to a constant."""
        prior = precision / 2 * float(theta @ theta)
        if self.stack is None:
            return prior
        scores = self.stack @ theta + self.mask
        return float(self.weight @ (_log_sum(scores) - scores[:, 0])) + prior

    def at(self, theta: Values, precision: float) -> tuple[float, Values, Values]:
        """Return the negative log posterior with gradient and Hessian."""
        size = len(theta)
        prior = precision / 2 * float(theta @ theta)
        if self.stack is None:
            return prior, precision * theta, precision * np.eye(size)
        scores = self.stack @ theta + self.mask
        log_sum = _log_sum(scores)
        shares = np.exp(scores - log_sum[:, None])
        expected = np.einsum("cm,cmd->cd", shares, self.stack)
        gradient = self.weight @ (expected - self.stack[:, 0]) + precision * theta
        spread = (self.weight[:, None] * shares)[..., None] * self.stack
        flat = self.stack.reshape(-1, size)
        hessian = flat.T @ spread.reshape(-1, size) - expected.T @ (self.weight[:, None] * expected)
        cost = float(self.weight @ (log_sum - scores[:, 0])) + prior
        return cost, gradient, hessian + precision * np.eye(size)


def _log_sum(scores: Values) -> Values:
    highest = scores.max(axis=1)
    return np.asarray(highest + np.log(np.exp(scores - highest[:, None]).sum(axis=1)))
