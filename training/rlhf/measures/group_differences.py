"""Surface features that one group of annotators values otherwise than the others.

For each group, two logistic Bradley-Terry models of the standardised features are fitted by ridge regression:
to the group's decided pairs, and to those of all other annotators. Their coefficients differ significantly
where the difference over its standard error has a small p-value, times the number of comparisons made
(Bonferroni). Standard errors are those of the sandwich over prompts (Godambe 1960).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from training.contract.people import SIGNIFICANT, GroupDifference
from training.rlhf.measures.calibration import Floats
from training.rlhf.measures.linear_choice import Choices, choices_of, fit_ridge
from training.rlhf.measures.surface import SURFACE_FEATURES
from training.rlhf.tokens.example import Example

STRENGTH = 0.01
FEWEST_JUDGMENTS = 20
"""Judgments of a group, and of the others, without which nothing is compared."""
_LEFT_OUT = "words"
"""Feature left out: its logarithm is a feature, too."""
_NORMAL_97_5 = NormalDist().inv_cdf(0.975)


def group_differences(
    features: Floats, examples: Sequence[Example], names: Sequence[str] = SURFACE_FEATURES
) -> dict[str, tuple[GroupDifference, ...]]:
    """Return by group the features that it values otherwise, the largest difference first.

    features: (rows, F) of all completions of the judgments, in order; names: of the F columns.
    """
    columns = [
        column for column, name in enumerate(names) if name != _LEFT_OUT and features[:, column].std() > 0
    ]
    groups = sorted({example.group for example in examples} - {""})
    if not columns or not groups:
        return {}
    table = features[:, columns]
    table = (table - table.mean(0)) / table.std(0)
    choices = choices_of(examples, whole=False)
    of_choice = np.array([example.group for example in examples for _ in example.pairs])
    tests = len(columns) * len(groups)
    result = {}
    for group in groups:
        mine = of_choice == group
        judged = {example.judgment for example in examples if example.group == group and example.pairs}
        others = {example.judgment for example in examples if example.pairs} - judged
        if min(len(judged), len(others)) < FEWEST_JUDGMENTS:
            continue
        group_weights, own_variance = fit_with_variance(table, choices.of(mine))
        rest, rest_variance = fit_with_variance(table, choices.of(~mine))
        errors = np.sqrt(own_variance + rest_variance)
        rows = zip([names[column] for column in columns], group_weights - rest, errors, strict=True)
        differences = (_difference(name, float(value), float(error), tests) for name, value, error in rows)
        significant = [difference for difference in differences if difference.p_value < SIGNIFICANT]
        result[group] = tuple(sorted(significant, key=lambda difference: -abs(difference.difference)))
    return result


def fit_with_variance(table: Floats, choices: Choices) -> tuple[Floats, Floats]:
    """Return the coefficients and their variances, (F,) each."""
    theta = fit_ridge(table, choices, STRENGTH, start=np.zeros(table.shape[1]))
    apart = table[choices.table[:, 0]] - table[choices.table[:, 1]]
    chance = 1 / (1 + np.exp(-(apart @ theta)))
    total = choices.weight.sum()
    curvature = (choices.weight * chance * (1 - chance)) @ (apart[:, :, None] * apart[:, None, :]).reshape(
        len(apart), -1
    )
    curvature = curvature.reshape(len(theta), -1) / total + STRENGTH * np.eye(len(theta))
    slopes = np.zeros((int(choices.prompt.max()) + 1, len(theta)))
    np.add.at(slopes, choices.prompt, (choices.weight * (1 - chance))[:, None] * apart)
    inverse = np.linalg.inv(curvature)
    return theta, np.diag(inverse @ (slopes.T @ slopes / total**2) @ inverse)


def _difference(name: str, value: float, error: float, tests: int) -> GroupDifference:
    by_chance = math.erfc(abs(value) / error / math.sqrt(2)) if error > 0 else float(value == 0)
    return GroupDifference(
        feature=name,
        difference=value,
        low=value - _NORMAL_97_5 * error,
        high=value + _NORMAL_97_5 * error,
        p_value=min(1.0, tests * by_chance),
    )
