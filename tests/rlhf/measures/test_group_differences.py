"""Surface features that a group values otherwise: named where they are, and not where they are not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from tests.rlhf.people import Person, judged
from training.rlhf.measures.linear_choice import choices_of
from training.rlhf.measures.people import STRENGTH, fit_with_variance, group_differences

NAMES = ("log_words", "list_items", "refusal")


def test_the_feature_on_which_two_groups_differ_is_named_with_its_sign() -> None:
    people = {
        "a": Person(taste=(1.2, 0.5, 0.0), group="A"),
        "b": Person(taste=(-1.2, 0.5, 0.0), group="B"),
    }
    features, examples = judged(people, 400, seed=1)

    differences = group_differences(features, examples, NAMES)

    assert [difference.feature for difference in differences["A"]] == ["log_words"]
    assert [difference.feature for difference in differences["B"]] == ["log_words"]
    (of_a,), (of_b,) = differences["A"], differences["B"]
    assert of_a.difference == pytest.approx(-of_b.difference)
    assert of_a.low > 1
    assert of_a.p_value < 0.001


def test_groups_of_one_taste_do_not_differ() -> None:
    people = {name: Person(taste=(1.2, 0.5, 0.0), group=name.upper()) for name in "ab"}

    for seed in range(10):
        assert not any(group_differences(*judged(people, 200, seed=seed), NAMES).values())


def test_a_group_of_few_judgments_is_not_compared() -> None:
    people = {"a": Person(taste=(3.0, 0, 0), group="A"), "b": Person(taste=(-3.0, 0, 0), group="B")}

    assert group_differences(*judged(people, 38, seed=1), NAMES) == {}


def test_its_standard_errors_are_those_of_repeated_samples() -> None:
    people = {"a": Person(taste=(0.8, 0.0, 0.0), group="A")}
    estimates, variances = [], []
    for seed in range(200):
        features, examples = judged(people, 150, seed=seed)
        theta, variance = fit_with_variance(features, choices_of(examples, whole=False))
        estimates.append(theta)
        variances.append(variance)

    spread = np.std(estimates, axis=0)
    assert np.sqrt(np.mean(variances, axis=0)) == pytest.approx(spread, rel=0.2)


def test_its_coefficients_minimise_the_penalised_log_loss() -> None:
    features, examples = judged({"a": Person(taste=(0.8, -0.3, 0.0))}, 60, seed=3)
    theta, _ = fit_with_variance(features, choices_of(examples, whole=False))

    def cost(vector: np.ndarray) -> float:
        margins = [
            (features[2 * row + winner] - features[2 * row + loser]) @ vector
            for row, example in enumerate(examples)
            for winner, loser in example.pairs
        ]
        losses = [math.log1p(math.exp(-margin)) for margin in margins]
        return float(np.mean(losses) + STRENGTH / 2 * vector @ vector)

    assert theta == pytest.approx(minimize(cost, np.zeros(3)).x, abs=1e-4)
