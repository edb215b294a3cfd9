"""Ratings are the likeliest ones, their errors are right, and what cannot be rated is refused."""

import math
from collections.abc import Callable
from typing import Any

import choix
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import norm

from tests.training.ratings.votes import count_votes, ratings_of_votes
from training.ratings import (
    ELO_PER_UNIT,
    WEAK_PRIOR,
    UnboundedRatingsError,
    bradley_terry_ratings,
    elo,
    holm,
    neighbours,
    win_rate_matrix,
)

Floats = NDArray[np.float64]


def random_wins(items: int, votes: int, seed: int) -> Floats:
    """Counts of votes between items of normal strength, pairs drawn unevenly."""
    generator = np.random.default_rng(seed)
    strengths = generator.normal(0, 1, items)
    popular = generator.dirichlet(np.ones(items))
    left = generator.choice(items, votes, p=popular)
    right = (left + generator.integers(1, items, votes)) % items
    won = generator.random(votes) < 1 / (1 + np.exp(strengths[right] - strengths[left]))
    wins = np.zeros((items, items))
    np.add.at(wins, (np.where(won, left, right), np.where(won, right, left)), 1)
    return wins


def random_votes(votes: int, *, items: int = 5, seed: int = 3) -> tuple[NDArray[np.int64], ...]:
    """Left, right, outcome and covariates (a length difference, position) of votes with ties."""
    generator = np.random.default_rng(seed)
    strengths = generator.normal(0, 0.7, items)
    left = generator.integers(0, items, votes)
    right = (left + generator.integers(1, items, votes)) % items
    covariates = np.stack([generator.integers(-3, 4, votes) / 4, generator.choice([-1, 1], votes)], axis=1)
    odds = strengths[left] - strengths[right] + covariates @ [0.8, 0.3]
    chances = np.stack([np.exp(-odds / 2), np.full(votes, 0.7), np.exp(odds / 2)])
    chances /= chances.sum(axis=0)
    outcome = (generator.random(votes) > np.cumsum(chances, axis=0)[:2]).sum(axis=0) - 1
    return left, right, outcome, covariates


def losses_of_votes(parameters: Floats, left, right, outcome, covariates, items: int) -> Floats:
    """−log P of each vote as Davidson writes it; parameters: ratings, coefficients, log ν."""
    strengths = np.exp(parameters[:items])
    shift = np.exp(covariates @ parameters[items:-1])
    left_strength, right_strength = strengths[left] * shift, strengths[right]
    tie = np.exp(parameters[-1]) * np.sqrt(left_strength * right_strength)
    chosen = np.where(outcome == 1, left_strength, np.where(outcome == 0, tie, right_strength))
    return np.asarray(-np.log(chosen / (left_strength + right_strength + tie)))


def derivative(function: Callable[[Floats], Floats], at: Floats, step: float = 1e-5) -> Floats:
    """By differences: one column for each parameter."""
    steps = np.eye(len(at)) * step
    return np.stack(
        [(function(at + offset) - function(at - offset)) / (2 * step) for offset in steps], axis=-1
    )


# ── the estimate ──────────────────────────────────────────────────────────────────────


def test_two_items_are_apart_by_the_log_of_their_odds():
    # 3 : 1 → d = log 3, shared around the mean. Var d = 1/3 + 1/1 = 4/3, so each rating has half its error.
    fit = bradley_terry_ratings([[0, 3], [1, 0]])
    assert fit.ratings == pytest.approx([math.log(3) / 2, -math.log(3) / 2])
    assert np.sqrt(np.diag(fit.covariance)) == pytest.approx([math.sqrt(4 / 3) / 2] * 2)
    assert fit.low[0] == pytest.approx(math.log(3) / 2 - norm.ppf(0.975) * math.sqrt(4 / 3) / 2)
    assert fit.tie is None
    assert fit.votes.tolist() == [4, 4]


def test_two_items_with_ties_fit_their_shares_exactly():
    # 4 : 4 : 1 of wins, ties and losses: P(tie) / √(P(win) P(loss)) = 4 / √4 = 2 = ν, d = log 4.
    fit = bradley_terry_ratings([[0, 4], [1, 0]], [[0, 4], [4, 0]])
    assert fit.ratings[0] - fit.ratings[1] == pytest.approx(math.log(4))
    assert fit.tie == pytest.approx(2)


@pytest.mark.parametrize(
    ("items", "votes", "seed"), [(3, 60, 0), (10, 1_000, 1), (40, 20_000, 2), (100, 1_000_000, 3)]
)
def test_ratings_equal_those_of_choix(items: int, votes: int, seed: int):
    wins = random_wins(items, votes, seed)
    expected = choix.ilsr_pairwise_dense(wins, tol=1e-10)
    assert bradley_terry_ratings(wins).ratings == pytest.approx(expected - expected.mean(), abs=1e-6)


def test_a_ring_that_barely_holds_together_is_fitted_exactly():
    """Each of six items beat the next 40 times, the last beat the first once: all gaps are the same d.

    At the likeliest d what was unexpected flows round the ring alike: 40 σ(−d) = 1 · σ(5 d), and σ(5 d) is 1
    to eight digits, so that d = log 39.
    """
    wins = np.zeros((6, 6))
    for item in range(5):
        wins[item, item + 1] = 40
    wins[5, 0] = 1
    expected = math.log(39) * np.array([2.5, 1.5, 0.5, -0.5, -1.5, -2.5])
    assert bradley_terry_ratings(wins).ratings == pytest.approx(expected, abs=1e-6)


def test_the_prior_is_the_penalty_of_choix():
    """choix adds alpha · |ratings|²; a normal prior of precision λ is λ / 2 of that."""
    fit = bradley_terry_ratings([[0, 5, 3], [0, 0, 2], [0, 1, 0]], prior=0.2)
    votes = [(0, 1)] * 5 + [(0, 2)] * 3 + [(1, 2)] * 2 + [(2, 1)]
    expected = choix.opt_pairwise(3, votes, alpha=0.1, tol=1e-10)
    assert fit.ratings == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_ties_and_covariates_are_fitted_as_a_general_optimiser_fits_them(seed: int):
    left, right, outcome, covariates = random_votes(800, seed=seed)
    fit = ratings_of_votes(left, right, outcome, covariates)
    data = (left, right, outcome, covariates, 5)
    best = minimize(lambda at: losses_of_votes(at, *data).sum(), np.zeros(8), method="BFGS", tol=1e-7).x
    assert fit.ratings == pytest.approx(best[:5] - best[:5].mean(), abs=1e-4)
    assert fit.coefficients == pytest.approx(best[5:7], abs=1e-4)
    assert fit.tie == pytest.approx(math.exp(best[7]), abs=1e-4)


def test_without_covariates_votes_and_counts_say_the_same():
    left, right, outcome, _ = random_votes(500)
    wins, ties = count_votes(left, right, outcome)
    by_counts = bradley_terry_ratings(wins, ties)
    by_votes = ratings_of_votes(left, right, outcome, np.zeros((500, 0)))
    assert by_votes.ratings == pytest.approx(by_counts.ratings, abs=1e-9)
    assert by_votes.tie == pytest.approx(by_counts.tie)
    assert by_votes.covariance == pytest.approx(by_counts.covariance, abs=1e-9)


def test_without_a_tie_davidsons_model_is_bradley_and_terrys():
    wins = random_wins(4, 100, 5)
    fit = bradley_terry_ratings(wins, np.zeros((4, 4)))
    assert fit.tie == 0
    assert fit.ratings.tolist() == bradley_terry_ratings(wins).ratings.tolist()


def test_turning_a_vote_around_changes_nothing():
    left, right, outcome, covariates = random_votes(400)
    turned = np.random.default_rng(1).random(400) < 0.5
    fit = ratings_of_votes(left, right, outcome, covariates)
    again = ratings_of_votes(
        np.where(turned, right, left),
        np.where(turned, left, right),
        np.where(turned, -outcome, outcome),
        np.where(turned[:, None], -covariates, covariates),
    )
    assert again.parameters == pytest.approx(fit.parameters, abs=1e-12)


# ── the errors ────────────────────────────────────────────────────────────────────────


def sandwich_by_differences(at: Floats, data: tuple[Any, ...]) -> Floats:
    """H⁺ (Σ g gᵀ) H⁺ of the votes one by one, all derivatives by differences."""

    def scores(parameters: Floats) -> Floats:
        return derivative(lambda inner: losses_of_votes(inner, *data), parameters)

    curvature = derivative(lambda outer: scores(outer).sum(axis=0), at, 1e-4)
    bread = np.linalg.pinv(curvature, rcond=1e-5)
    each = scores(at)
    return bread @ each.T @ each @ bread


def test_the_covariance_with_covariates_is_the_sandwich_of_the_votes():
    left, right, outcome, covariates = random_votes(600)
    fit = ratings_of_votes(left, right, outcome, covariates)
    expected = sandwich_by_differences(fit.parameters, (left, right, outcome, covariates, 5))
    assert fit.parameter_covariance == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_the_covariance_of_counts_is_the_sandwich_of_the_votes():
    left, right, outcome, _ = random_votes(600)
    fit = bradley_terry_ratings(*count_votes(left, right, outcome))
    data = (left, right, outcome, np.zeros((600, 0)), 5)
    expected = sandwich_by_differences(fit.parameters, data)
    assert fit.parameter_covariance == pytest.approx(expected, rel=1e-3, abs=1e-5)


# ── what cannot be rated ──────────────────────────────────────────────────────────────


def test_items_that_were_never_compared_with_the_rest_are_named():
    wins = np.zeros((5, 5))
    for left, right in ((0, 1), (1, 2), (3, 4)):
        wins[left, right] = wins[right, left] = 2
    with pytest.raises(UnboundedRatingsError, match="Items 3, 4 stand apart") as refused:
        bradley_terry_ratings(wins)
    assert refused.value.items == (3, 4)


@pytest.mark.parametrize(("turn", "verb"), [(False, "lost to"), (True, "beat")])
def test_an_item_that_won_or_lost_everything_is_named(turn: bool, verb: str):
    wins = np.array([[0, 2, 1], [3, 0, 1], [0, 0, 0]])
    # Item 2 lost to both others; turned around it beat both.
    with pytest.raises(
        UnboundedRatingsError, match=f"Item 2 never {'lost to' if turn else 'beat'}"
    ) as refused:
        bradley_terry_ratings(wins.T if turn else wins)
    assert refused.value.items == (2,)


def test_ties_that_hold_a_ring_together_only_in_appearance_are_refused():
    """0 ties with 1, 1 with 2, and 2 always beats 0: P of all grows without end as 2 leaves 0 behind."""
    wins = np.zeros((3, 3))
    wins[2, 0] = 5
    ties = np.array([[0, 5, 0], [5, 0, 5], [0, 5, 0]])
    with pytest.raises(UnboundedRatingsError, match="run away"):
        bradley_terry_ratings(wins, ties)


def test_nothing_but_ties_is_refused():
    with pytest.raises(UnboundedRatingsError):
        bradley_terry_ratings(np.zeros((2, 2)), [[0, 5], [5, 0]])


@pytest.mark.parametrize(
    ("wins", "ties"),
    [
        ([[0, 4, 9], [2, 0, 9], [0, 0, 0]], None),
        ([[0, 4, 0], [2, 0, 0], [0, 0, 0]], None),
        ([[0, 0], [0, 0]], [[0, 5], [5, 0]]),
        ([[0, 0, 0], [0, 0, 0], [5, 0, 0]], [[0, 5, 0], [5, 0, 5], [0, 5, 0]]),
        ([[0]], None),
    ],
    ids=["always lost", "never compared", "only ties", "runs away", "alone"],
)
def test_a_prior_gives_an_answer_to_everything(wins, ties):
    fit = bradley_terry_ratings(wins, ties, prior=WEAK_PRIOR, bootstrap=50)
    assert np.isfinite(fit.parameters).all()
    assert np.isfinite(fit.parameter_covariance).all()
    assert np.isfinite(fit.resampled).all()
    assert fit.ratings.mean() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("column", "guilty"),
    [
        (lambda left, right, covariates: covariates[:, 0] * 2, r"\[0, 2\]"),
        (lambda left, right, covariates: np.zeros(len(left)), r"\[2\]"),
        # What follows from who plays is part of the ratings.
        (lambda left, right, covariates: (left == 1) * 1.0 - (right == 1), r"\[2\]"),
    ],
    ids=["twice the same", "always 0", "an item's own"],
)
def test_covariates_that_cannot_be_told_apart_are_named(column, guilty: str):
    left, right, outcome, covariates = random_votes(400)
    more = np.column_stack([covariates, column(left, right, covariates)])
    with pytest.raises(ValueError, match=f"covariates {guilty} cannot be told apart"):
        ratings_of_votes(left, right, outcome, more)


def test_a_covariate_that_tells_every_outcome_is_refused():
    left, right, outcome, covariates = random_votes(400)
    with_outcome = np.column_stack([covariates, outcome])
    with pytest.raises(UnboundedRatingsError, match="a covariate tells the outcome"):
        ratings_of_votes(left, right, outcome, with_outcome)


@pytest.mark.parametrize(
    ("wins", "ties", "options", "message"),
    [
        ([[0, 1]], None, {}, "square"),
        ([[0, -1], [1, 0]], None, {}, "not negative"),
        ([[0, math.nan], [1, 0]], None, {}, "finite"),
        ([[1, 1], [1, 0]], None, {}, "with itself"),
        ([[0, 1], [1, 0]], [[0, 1], [2, 0]], {}, "symmetric"),
        ([[0, 1], [1, 0]], [[0]], {}, "shape"),
        ([[0, 1.5], [1, 0]], None, {"bootstrap": 10}, "whole numbers"),
        ([[0, 1], [1, 0]], None, {"prior": -1.0}, "negative"),
    ],
)
def test_what_are_no_counts_is_refused(wins, ties, options, message: str):
    with pytest.raises(ValueError, match=message):
        bradley_terry_ratings(wins, ties, **options)


# ── beside the ratings ────────────────────────────────────────────────────────────────


def test_votes_are_counted_by_winner():
    wins, ties = count_votes([0, 1, 0, 2], [1, 0, 1, 0], [1, 1, 0, -1], items=4)
    assert wins.tolist() == [[0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert ties.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]


def test_a_tie_is_half_a_win_in_the_matrix_of_win_rates():
    rates, votes = win_rate_matrix([[0, 3, 0], [1, 0, 0], [0, 0, 0]], [[0, 4, 0], [4, 0, 0], [0, 0, 0]])
    # (3 + 4 / 2) / 8
    assert rates[0, 1] == 0.625
    assert rates[1, 0] == 0.375
    assert np.isnan(rates[0, 2])
    assert votes[0].tolist() == [0, 8, 0]


def test_four_hundred_points_of_elo_are_odds_of_ten_to_one():
    fit = bradley_terry_ratings([[0, 10], [1, 0]])
    assert fit.elo() == pytest.approx([1200, 800])
    assert fit.elo(fit.low, mean=0)[0] == pytest.approx(fit.low[0] * 400 / math.log(10))
    assert pytest.approx(173.7178) == ELO_PER_UNIT


def test_the_difference_of_neighbours_is_tested_with_their_covariance():
    # 30 : 10 → d = log 3, variance 1/30 + 1/10.
    (neighbour,) = neighbours(bradley_terry_ratings([[0, 10], [30, 0]]))
    error = math.sqrt(1 / 30 + 1 / 10)
    assert (neighbour.better, neighbour.worse) == (1, 0)
    assert neighbour.difference == pytest.approx(math.log(3))
    assert neighbour.standard_error == pytest.approx(error)
    assert neighbour.p_value == pytest.approx(2 * norm.sf(math.log(3) / error))
    assert neighbour.p_holm == neighbour.p_value


def test_neighbours_go_down_the_order_and_are_corrected_together():
    pairs = neighbours(bradley_terry_ratings(random_wins(6, 3_000, 8)))
    assert [pair.worse for pair in pairs[:-1]] == [pair.better for pair in pairs[1:]]
    assert [pair.p_holm for pair in pairs] == holm(np.array([pair.p_value for pair in pairs])).tolist()


def test_holm_steps_down():
    # 0.01 · 3, 0.03 · 2, then 0.04 · 1, which must not fall below 0.06.
    assert holm(np.array([0.01, 0.04, 0.03])) == pytest.approx([0.03, 0.06, 0.06])
    assert holm(np.array([0.5, 0.9])) == pytest.approx([1, 1])
    assert holm(np.zeros(0)).tolist() == []


def test_online_elo_moves_by_what_was_unexpected():
    # Even: half of 32 points change hands. Then a tie between 1016 and 984: 32 · (0.5 − expected).
    assert elo([(0, 1, 1)], items=3, k=32).tolist() == [1016, 984, 1000]
    expected = 1 / (1 + 10 ** (-32 / 400))
    moved = 32 * (0.5 - expected)
    assert elo([(0, 1, 1), (0, 1, 0)], items=2, k=32) == pytest.approx([1016 + moved, 984 - moved])
    assert elo([(0, 1, -1)], items=2, start=0).tolist() == [-2, 2]
