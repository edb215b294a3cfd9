"""The win rate at equal length: what is left of a judge's preference once length is taken out."""

import random

import pytest
from scipy.optimize import minimize
from scipy.special import expit

from training.figures.evaluation_statistics import length_controlled_win_rate


def drawn(size: int, *, quality: float, taste: float, seed: int) -> tuple[list[float], list[tuple[int, int]]]:
    source = random.Random(seed)
    lengths = [(200, max(1, round(source.gauss(300, 100)))) for _ in range(size)]
    chances = [expit(quality + taste * (new - old) / 100) for old, new in lengths]
    return [float(source.random() < chance) for chance in chances], lengths


def test_a_policy_that_wins_by_length_alone_is_no_better_at_equal_length():
    outcomes, lengths = drawn(600, quality=0.0, taste=1.2, seed=1)
    assert sum(outcomes) / len(outcomes) > 0.65
    value, low, high = length_controlled_win_rate(outcomes, lengths)
    assert low < 0.5 < high
    assert value == pytest.approx(0.5, abs=0.1)


def test_a_policy_that_is_better_at_any_length_stays_better():
    outcomes, lengths = drawn(600, quality=1.0, taste=0.0, seed=2)
    value, low, _high = length_controlled_win_rate(outcomes, lengths)
    assert low > 0.5
    assert value == pytest.approx(expit(1.0), abs=0.08)


def test_the_fit_is_the_maximum_of_the_penalised_likelihood():
    import numpy as np

    outcomes, lengths = drawn(40, quality=0.4, taste=0.7, seed=3)
    outcomes[0] = 0.5
    wins = np.array(outcomes)
    differences = np.array([new - old for old, new in lengths], dtype=float)
    tastes = np.tanh(differences / differences.std())

    def loss(parameters):
        margins = parameters[0] + parameters[1] * tastes
        likelihood = wins * -np.logaddexp(0, -margins) + (1 - wins) * -np.logaddexp(0, margins)
        return -likelihood.sum() + 0.05 / 2 * (parameters**2).sum()

    fitted = minimize(loss, np.zeros(2), tol=1e-12)
    assert length_controlled_win_rate(outcomes, lengths)[0] == pytest.approx(expit(fitted.x[0]), abs=1e-5)


def test_equal_lengths_leave_the_win_rate_as_it_is():
    # 15 wins, 5 losses: σ(θ) with θ shrunk a little by the penalty.
    value = length_controlled_win_rate([1.0] * 15 + [0.0] * 5, [(100, 100)] * 20)[0]
    assert value == pytest.approx(0.75, abs=0.01)


def test_wins_that_length_separates_completely_give_a_finite_figure():
    value, low, high = length_controlled_win_rate([1.0] * 10 + [0.0] * 10, [(1, 9)] * 10 + [(9, 1)] * 10)
    assert 0 < low <= value <= high < 1


def test_fewer_than_ten_prompts_that_are_no_ties_give_no_figure():
    assert length_controlled_win_rate([1.0] * 9, [(1, 2)] * 9) is None
    assert length_controlled_win_rate([1.0] * 9 + [0.5] * 20, [(1, 2)] * 29) is None


def test_outcomes_without_lengths_are_refused():
    with pytest.raises(ValueError, match="do not fit"):
        length_controlled_win_rate([1.0] * 12, [(1, 2)] * 11)
