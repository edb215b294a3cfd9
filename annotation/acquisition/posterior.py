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
class ChoiceTable:
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


def choices_of(rankings: Sequence[tuple[Sequence[int], Sequence[int]]]) -> ChoiceTable:
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


def table_of(choices: Sequence[tuple[int, ...]]) -> ChoiceTable:
    most = max(map(len, choices), default=2)
    table = np.full((len(choices), most), NOBODY, dtype=np.int64)
    for index, choice in enumerate(choices):
        table[index, : len(choice)] = choice
    return ChoiceTable(table, np.ones(len(choices)))


def fit(
    features: Values,
    choices: ChoiceTable,
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


def fit_at(
    features: Values, choices: ChoiceTable, precision: float, *, start: Values | None = None
) -> Posterior:
    """Return the posterior at one precision, its mode by Newton's method with halved steps."""
    size = features.shape[1]
    theta = np.zeros(size) if start is None else start.copy()
    of_two = choices.table.shape[1] == 2 and len(choices.table)
    chosen = _Pairs(features, choices) if of_two else _ChosenRows(features, choices)
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

    def __init__(self, features: Values, choices: ChoiceTable) -> None:
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


class _ChosenRows:
    """The rows that were chosen among, as far as they are used."""

    def __init__(self, features: Values, choices: ChoiceTable) -> None:
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


# The learning curve of a project's head, the gain of the next annotations, and that of a strategy.
#
# NumPy alone. The curve is measured: the head is fitted to parts of the rankings and asked about prompts
# that
# it has not seen. It is extrapolated as accuracy = a − b / √n, the rate at which a parametric model learns.

_PARTS = (0.2, 0.35, 0.5, 0.7, 1.0)
_DEALS = 8
_TESTED = 0.25
_FEWEST = 40
"""With fewer rankings no curve is drawn."""
_MOST = 1500
"""Of more rankings so many are drawn by chance."""
_BOOTSTRAPS = 400
_DRAWS = 20

Ranking = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class LearningCurve:
    """A learning curve, and what lies ahead."""

    rankings: int
    """From how many it was measured."""
    points: list[tuple[int, float]]
    """(rankings learned from, accuracy on prompts that the head had not seen)."""
    now: tuple[float, float, float]
    """Accuracy at this number by the fitted curve, with a 95 % interval."""
    next_100: tuple[float, float, float]
    """Gain of the next hundred annotations, with a 95 % interval."""

    def to_json(self) -> dict[str, object]:
        """Return it for the database."""
        return {
            "rankings": self.rankings,
            "points": [list(point) for point in self.points],
            "now": list(self.now),
            "next_100": list(self.next_100),
        }


def outlook_of(
    features: Values,
    rankings: Sequence[Ranking],
    prompts: Sequence[int],
    precision: float,
    random: np.random.Generator,
) -> LearningCurve | None:
    """Return the outlook from rankings with their prompts; None before there are enough of them.

    Prompts are dealt to learning and test several times. The interval is that of the deals, by bootstrap.
    """
    indexes = [index for index, (_, ranks) in enumerate(rankings) if len(set(ranks)) > 1]
    if len(indexes) < _FEWEST or len({prompts[index] for index in indexes}) < 10:
        return None
    chosen = random.permutation(indexes)[:_MOST]
    measured = [_deal(features, rankings, prompts, chosen, precision, random) for _ in range(_DEALS)]
    sizes = np.array([[size for size, _ in deal] for deal in measured], dtype=np.float64)
    accuracies = np.array([[value for _, value in deal] for deal in measured])
    now, ahead = _extrapolated(sizes, accuracies, len(indexes))
    drawn = [
        _extrapolated(sizes[some], accuracies[some], len(indexes))
        for some in (random.integers(0, _DEALS, _DEALS) for _ in range(_BOOTSTRAPS))
    ]
    points = [
        (round(float(size)), float(value))
        for size, value in zip(sizes.mean(0), accuracies.mean(0), strict=True)
    ]
    return LearningCurve(
        len(indexes), points, _interval(now, [a for a, _ in drawn]), _interval(ahead, [b for _, b in drawn])
    )


def _deal(
    features: Values,
    rankings: Sequence[Ranking],
    prompts: Sequence[int],
    chosen: Rows,
    precision: float,
    random: np.random.Generator,
) -> list[tuple[int, float]]:
    """Return the curve of one deal of the prompts."""
    known = sorted({prompts[index] for index in chosen})
    tested = set(random.permutation(known)[: max(1, round(_TESTED * len(known)))].tolist())
    learned = [index for index in random.permutation(chosen) if prompts[index] not in tested]
    test = choices_of([rankings[index] for index in chosen if prompts[index] in tested])
    course, start = [], None
    for part in _PARTS:
        count = max(2, round(part * len(learned)))
        choices = choices_of([rankings[index] for index in learned[:count]])
        posterior = fit_at(features, choices, precision, start=start)
        start = posterior.mean
        course.append((count, accuracy_on(posterior, features, test)))
    return course


def accuracy_on(posterior: Posterior, features: Values, choices: ChoiceTable) -> float:
    """Return the share of pairs (chosen, other) that the mean orders so; equal scores count half."""
    scores = features @ posterior.mean
    right, count = 0.0, 0
    for place in range(1, choices.table.shape[1]):
        there = choices.table[:, place] >= 0
        lead = scores[choices.table[there, 0]] - scores[choices.table[there, place]]
        right += float((lead > 0).sum() + (lead == 0).sum() / 2)
        count += len(lead)
    return right / count if count else 0.5


def _extrapolated(sizes: Values, accuracies: Values, count: int) -> tuple[float, float]:
    """Return accuracy at `count`, and the gain of a hundred more, by least squares on 1 / √n.

    A curve that falls with more data is chance: it is taken for flat.
    """
    x, y = 1 / np.sqrt(sizes.ravel()), accuracies.ravel()
    slope = min(0.0, float(np.cov(x, y)[0, 1] / max(x.var(ddof=1), 1e-12)))
    level = float(y.mean() - slope * x.mean())
    now = min(1.0, level + slope / np.sqrt(count))
    return now, min(1.0, level + slope / np.sqrt(count + 100)) - now


def _interval(value: float, drawn: Sequence[float]) -> tuple[float, float, float]:
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(value), float(min(low, value)), float(max(high, value))


def random_labels_worth(
    features: Values, judged: Rows, pool: Rows, posterior: Posterior, random: np.random.Generator
) -> float:
    """Return how many pairs drawn at random hold as much information about the reward as those judged.

    Information is log det(λ I + Σ p (1 − p) z zᵀ) by what is known now. judged, pool: (n, 2) rows of pairs.
    """
    goal = _log_det(_information(features, judged, posterior), posterior.precision)
    counts = []
    for _ in range(_DRAWS):
        drawn = pool[random.permutation(len(pool))]
        low, high = 0, len(drawn)
        while low < high:
            middle = (low + high) // 2
            held = _log_det(_information(features, drawn[:middle], posterior), posterior.precision)
            low, high = (middle + 1, high) if held < goal else (low, middle)
        counts.append(low)
    return float(np.mean(counts))


def _information(features: Values, pairs: Rows, posterior: Posterior) -> Values:
    differences = (features[pairs[:, 0]] - features[pairs[:, 1]]).astype(np.float64)
    p = 0.5 * (1 + np.tanh(differences @ posterior.mean / 2))
    return np.asarray(differences.T @ ((p * (1 - p))[:, None] * differences))


def _log_det(information: Values, precision: float) -> float:
    return float(np.linalg.slogdet(precision * np.eye(len(information)) + information)[1])
