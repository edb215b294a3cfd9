"""Linear scores fitted to rankings by ridge regression; strength by cross-validation grouped by prompt.

A ranking is a set of choices: of a pair the winner against the loser (Bradley & Terry 1952), of a whole
ranking every completion against those below it (Luce 1959, Plackett 1975). Completions that tie are not
chosen against each other. The cost of a choice is −log softmax of the scores at the chosen one; a
judgment's choices share its weight. Minimised is the weighted mean cost + ½ · strength · ‖θ‖² over
standardised features.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from training.contract.methods.reward import Covariate
from training.rlhf.losses import NOT_ORDERED
from training.rlhf.measures.calibration import Floats
from training.rlhf.tokens.example import Example

STRENGTHS = (30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
"""Ridge strengths that cross-validation chooses from, strongest first."""
FOLDS = 5
_WORSE_IN_A_ROW = 2
"""Weaker strengths are not tried once so many in a row were worse than the best."""
_NOBODY = -1

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Choices:
    """Choices among completions that are rows of a feature table."""

    table: Ints
    """(C, M) rows of the completions of each choice, the chosen one first; −1 where it has fewer."""
    weight: Floats
    """(C,) weight of each choice: its judgment's, divided over that judgment's choices."""
    prompt: Ints
    """(C,) number of the prompt of each choice."""
    covariates: Floats = field(default_factory=lambda: np.empty((0, 0)))
    """(rows, K): what explains choices beside the features, see `covariate_values`; empty without any."""

    def of(self, chosen: NDArray[np.bool_]) -> Choices:
        return Choices(self.table[chosen], self.weight[chosen], self.prompt[chosen], self.covariates)

    def costs(self, scores: Floats) -> Floats:
        """Return −log p of each choice, (C,). scores: (rows,)."""
        return self._costs_and_shares(scores)[0]

    def mean_cost(self, scores: Floats) -> tuple[float, Floats]:
        """Return the weighted mean of costs and its derivative by each score, (rows,). scores: (rows,)."""
        costs, slopes = self._costs_and_shares(scores)
        slopes[:, 0] -= 1
        slopes *= self.weight[:, None] / self.weight.sum()
        # A completion that is missing has a slope of 0, wherever it is added.
        rows = np.maximum(self.table, 0)
        by_row = np.bincount(rows.ravel(), slopes.ravel(), minlength=len(scores))
        return self.mean(costs), by_row.astype(np.float64)

    def _costs_and_shares(self, scores: Floats) -> tuple[Floats, Floats]:
        """Return −log p of each choice, (C,), and p of each of its completions, (C, M).

        By hand, as SciPy's logsumexp and softmax take many times as long for the few numbers of a choice.
        """
        placed = np.where(self.table == _NOBODY, -np.inf, scores[self.table])
        highest = placed.max(1, keepdims=True)
        shares = np.exp(placed - highest)
        total = shares.sum(1, keepdims=True)
        return (np.log(total) + highest - placed[:, :1])[:, 0], shares / total

    def standard_error(self, costs: Floats) -> float:
        """Return the standard error of the weighted mean of costs over prompts."""
        centred = self.weight * (costs - self.mean(costs))
        return float(np.sqrt(np.square(np.bincount(self.prompt, centred)).sum()) / self.weight.sum())

    def mean(self, costs: Floats) -> float:
        """Return the weighted mean of costs."""
        return float(self.weight @ costs / self.weight.sum())


def choices_of(examples: Sequence[Example], *, whole: bool, covariates: Sequence[Covariate] = ()) -> Choices:
    """Return the choices of judgments whose completions are rows in order.

    whole: every completion against all below it (Plackett-Luce); else pair by pair (Bradley-Terry).
    """
    sets: list[tuple[int, ...]] = []
    weights: list[float] = []
    prompts: list[int] = []
    numbers: dict[str, int] = {}
    first = 0
    for example in examples:
        choices = list(_whole(example.ranks)) if whole else list(example.pairs)
        sets += [tuple(first + place for place in choice) for choice in choices]
        weights += [example.weight / len(choices)] * len(choices)
        prompts += [numbers.setdefault(example.prompt, len(numbers))] * len(choices)
        first += len(example.answers)
    most = max((len(choice) for choice in sets), default=2)
    table = np.full((len(sets), most), _NOBODY, dtype=np.int64)
    for row, choice in enumerate(sets):
        table[row, : len(choice)] = choice
    values = covariate_values(examples, covariates)
    return Choices(table, np.array(weights), np.array(prompts, dtype=np.int64), values)


def covariate_values(examples: Sequence[Example], covariates: Sequence[Covariate]) -> Floats:
    """Return the place of each completion's answer among a covariate's, −½ to ½, (rows, K).

    The completions of all examples are rows in order. Another answer, or none, has 0, the middle.
    """
    values = np.zeros((sum(len(example.answers) for example in examples), len(covariates)))
    columns = {covariate.question: column for column, covariate in enumerate(covariates)}
    first = 0
    for example in examples:
        for label in example.labels.questions:
            column = columns.get(label.question)
            if column is not None and label.value in (answers := covariates[column].answers):
                place = answers.index(label.value) / (len(answers) - 1)
                values[first + label.answer, column] = place - 0.5
        first += len(example.answers)
    return values


def _whole(ranks: Sequence[int]) -> Iterable[tuple[int, ...]]:
    for place, rank in enumerate(ranks):
        below = tuple(
            other for other, of_other in enumerate(ranks) if of_other > rank or of_other == NOT_ORDERED
        )
        if rank > 0 and below:
            yield (place, *below)


@dataclass(frozen=True, slots=True)
class LinearScore:
    """A linear score of features as they are: features @ weight + offset."""

    weight: Floats
    offset: float
    strength: float
    log_loss: float
    """Cross-validated mean cost of a choice at this strength; infinite where nothing was cross-validated."""
    costs: Floats
    """Cross-validated cost of each choice, (C,); empty as above."""
    coefficients: Floats
    """Of the covariates beside the features, (K,). No score of completions contains them."""

    def __call__(self, features: Floats) -> Floats:
        """Return the scores of completions: (rows, features) to (rows,)."""
        return features @ self.weight + self.offset


def fit_cross_validated(
    features: Floats, choices: Choices, *, strengths: Sequence[float] = STRENGTHS
) -> LinearScore:
    """Fit a linear score at the strength with the lowest cross-validated cost.

    features: (rows, F). Prompts are dealt to folds in the order of their numbers. With fewer than two
    prompts the strongest ridge is taken.
    """
    folds = choices.prompt % FOLDS
    if len(np.unique(folds)) < 2:
        return fit_at(features, choices, strengths[0])
    table, _, _ = _standardised(features, choices)
    costs, strength = _best_strength(table, choices, folds, strengths)
    return replace(fit_at(features, choices, strength), log_loss=choices.mean(costs), costs=costs)


def fit_at(features: Floats, choices: Choices, strength: float) -> LinearScore:
    """Fit a linear score at one strength. The offset makes the mean score of all rows 0."""
    table, mean, spread = _standardised(features, choices)
    theta = fit_ridge(table, choices, strength, start=np.zeros(table.shape[1]))
    weight, coefficients = np.split(theta / spread, [features.shape[1]])
    offset = -float(mean[: len(weight)] @ weight)
    return LinearScore(weight, offset, strength, math.inf, np.empty(0), coefficients)


def _standardised(features: Floats, choices: Choices) -> tuple[Floats, Floats, Floats]:
    """Return features and covariates with mean 0 and deviation 1, (rows, F + K); their means; deviations."""
    whole = np.concatenate([features, choices.covariates], axis=1) if choices.covariates.size else features
    mean, spread = whole.mean(0), whole.std(0)
    spread = np.where(spread == 0, 1.0, spread)
    return (whole - mean) / spread, mean, spread


def _best_strength(
    table: Floats, choices: Choices, folds: Ints, strengths: Sequence[float]
) -> tuple[Floats, float]:
    """Return the cross-validated costs of the best strength, and it; a fit begins at the stronger one's."""
    best, chosen, worse = np.full(len(folds), np.inf), strengths[0], 0
    numbers = np.unique(folds)
    thetas = {int(fold): np.zeros(table.shape[1]) for fold in numbers}
    for strength in strengths:
        costs = np.zeros(len(folds))
        for fold in thetas:
            here = folds == fold
            thetas[fold] = fit_ridge(table, choices.of(~here), strength, start=thetas[fold])
            costs[here] = choices.of(here).costs(table @ thetas[fold])
        is_better = choices.mean(costs) < choices.mean(best)
        worse = 0 if is_better else worse + 1
        if is_better:
            best, chosen = costs, strength
        if worse == _WORSE_IN_A_ROW:
            break
    return best, chosen


def fit_ridge(features: Floats, choices: Choices, strength: float, *, start: Floats) -> Floats:
    """Return the θ that minimises mean cost + ½ · strength · ‖θ‖²; convex, so there is one."""
    from scipy.optimize import minimize

    def cost(theta: Floats) -> tuple[float, Floats]:
        mean, slopes = choices.mean_cost(features @ theta)
        return mean + strength / 2 * float(theta @ theta), slopes @ features + strength * theta

    minimum = minimize(cost, start, jac=True, method="L-BFGS-B", options={"maxiter": 200, "gtol": 1e-6})
    return np.asarray(minimum.x)
