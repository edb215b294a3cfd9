"""Drift of preferences: older judgments are discounted where that predicts the newest round better.

A judgment of age a rounds counts 2^(−a / h). For every half-life h of a few, a linear score is fitted with
and without the discount to all judgments but those of a fifth of the prompts, and predicts the newest
round's judgments of that fifth. The test is one-sided: the mean log-loss saved over its standard error over
prompts, by the normal distribution, times the number of half-lives tried (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from training.contract.baselines import FEWEST_PROMPTS, Interval
from training.contract.people import SIGNIFICANT, DriftFigures
from training.rlhf.measures.calibration import Floats
from training.rlhf.measures.linear_choice import FOLDS, Choices, fit_ridge
from training.rlhf.tokens.example import Example

HALF_LIVES = (0.5, 1.0, 2.0)
"""Half-lives that are tried, in rounds."""
_NORMAL_97_5 = NormalDist().inv_cdf(0.975)


def discounts(rounds: Sequence[int], *, newest: int, half_life: float) -> Floats:
    """Return the factor of the weight of judgments of these rounds: (N,) in (0, 1]."""
    ages = np.maximum(newest - np.array(rounds, dtype=np.float64), 0)
    return np.asarray(2.0 ** (-ages / half_life))


def newest_round(examples: Sequence[Example]) -> int | None:
    """Return the newest round in which enough prompts were judged; None where it has no predecessor."""
    prompts: dict[int, set[str]] = {}
    for example in examples:
        prompts.setdefault(example.round, set()).add(example.prompt)
    enough = [number for number, some in prompts.items() if len(some) >= FEWEST_PROMPTS]
    newest = max(enough, default=min(prompts, default=0))
    return newest if newest > min(prompts, default=0) else None


@dataclass(frozen=True, slots=True)
class _Test:
    half_life: float
    mean: float
    error: float

    @property
    def p_value(self) -> float:
        if self.error == 0:
            return 0.0 if self.mean > 0 else 1.0
        return min(1.0, len(HALF_LIVES) * (1 - NormalDist().cdf(self.mean / self.error)))


def drift_of(
    features: Floats, choices: Choices, rounds: Sequence[int], *, newest: int, strength: float
) -> DriftFigures | None:
    """Test whether a discount predicts the newest round better; None where no fold can be left out.

    features: (rows, F). rounds: (C,) of each choice. strength: of the ridge.
    """
    mean, spread = features.mean(0), features.std(0)
    table = (features - mean) / np.where(spread == 0, 1.0, spread)
    ages = np.array(rounds)
    present = ages >= newest
    folds = choices.prompt % FOLDS
    if len(np.unique(folds[present])) < 2:
        return None
    equal = _predicted(table, choices, present, strength)
    tests = []
    for half_life in HALF_LIVES:
        weight = choices.weight * discounts(rounds, newest=newest, half_life=half_life)
        saved = equal - _predicted(table, replace(choices, weight=weight), present, strength)
        newly = choices.of(present)
        tests.append(_Test(half_life, newly.mean(saved), newly.standard_error(saved)))
    best = min(tests, key=lambda test: (test.p_value, -test.mean))
    return DriftFigures(
        round=newest,
        judgments=round(float(choices.weight[present].sum())),
        p_value=best.p_value,
        half_life=best.half_life,
        gain=Interval(
            value=best.mean,
            low=best.mean - _NORMAL_97_5 * best.error,
            high=best.mean + _NORMAL_97_5 * best.error,
        ),
        applied=best.p_value < SIGNIFICANT,
    )


def _predicted(table: Floats, choices: Choices, present: np.ndarray, strength: float) -> Floats:
    """Return the cross-validated costs of the present choices, (present,)."""
    folds = choices.prompt % FOLDS
    costs = np.full(len(folds), math.nan)
    theta = np.zeros(table.shape[1])
    for fold in np.unique(folds[present]):
        theta = fit_ridge(table, choices.of(folds != fold), strength, start=theta)
        here = present & (folds == fold)
        costs[here] = choices.of(here).costs(table @ theta)
    return np.asarray(costs[present])
