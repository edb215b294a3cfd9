"""Intervals hold the truth as often as they say, and resamples are what a refit of each would give."""

from collections.abc import Callable

import choix
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.training.ratings.votes import ratings_of_votes
from training import ratings
from training.ratings import WEAK_PRIOR, Grouped, Ratings, Rows, bradley_terry_ratings, inverse

Floats = NDArray[np.float64]

ITEMS = 8
TRUTH = np.array([1.3, 0.9, 0.4, 0.1, -0.1, -0.5, -0.8, -1.3])
TIE = 0.8


def simulated(generator: np.random.Generator, *, tie: float, least: int, most: int) -> tuple[Floats, Floats]:
    """Wins and ties drawn from the model with ratings TRUTH; each pair has its own number of votes."""
    votes = np.triu(generator.integers(least, most, (ITEMS, ITEMS)), 1)
    odds = np.subtract.outer(TRUTH, TRUTH)
    chances = np.stack([np.exp(odds / 2), np.full_like(odds, tie), np.exp(-odds / 2)], axis=-1)
    drawn = generator.multinomial(votes, chances / chances.sum(axis=-1, keepdims=True)).astype(float)
    tied = drawn[..., 1] + drawn[..., 1].T
    return drawn[..., 0] + drawn[..., 2].T, tied


def share_held(simulations: int, fit: Callable[[Floats, Floats], Ratings], *, tie: float) -> float:
    """Return the share of all items and simulations in which the interval holds the rating."""
    generator = np.random.default_rng(11)
    held = []
    for _ in range(simulations):
        fitted = fit(*simulated(generator, tie=tie, least=5, most=60))
        held.append(((fitted.low <= TRUTH) & (fitted.high >= TRUTH)).mean())
    return float(np.mean(held))


# The error of a share of 1,000 independent simulations at 95 % is √(0.95 · 0.05 / 1000) = 0.7 %; the items
# of one simulation only add to that. So 93 to 97 % is 2.9 errors each way.
@pytest.mark.parametrize("tie", [0, TIE], ids=["decided", "with ties"])
def test_sandwich_intervals_hold_the_truth_in_95_of_100(tie: float):
    held = share_held(1000, lambda wins, ties: bradley_terry_ratings(wins, ties if tie else None), tie=tie)
    assert 0.93 <= held <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("tie", [0, pytest.param(TIE, marks=pytest.mark.long)], ids=["decided", "with ties"])
def test_bootstrap_intervals_hold_the_truth_in_95_of_100(tie: float):
    held = share_held(
        1000, lambda wins, ties: bradley_terry_ratings(wins, ties if tie else None, bootstrap=300), tie=tie
    )
    assert 0.93 <= held <= 0.97


def votes_with_covariates(
    generator: np.random.Generator, votes: int, coefficients: Floats
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], Floats]:
    left = generator.integers(0, ITEMS, votes)
    right = (left + generator.integers(1, ITEMS, votes)) % ITEMS
    covariates = np.stack(
        [generator.integers(-3, 4, votes) / 4, generator.choice([-1.0, 1.0], votes)], axis=1
    )
    odds = TRUTH[left] - TRUTH[right] + covariates @ coefficients
    chances = np.stack([np.exp(-odds / 2), np.full(votes, TIE), np.exp(odds / 2)])
    chances /= chances.sum(axis=0)
    outcome = (generator.random(votes) > np.cumsum(chances, axis=0)[:2]).sum(axis=0) - 1
    return left, right, outcome, covariates


def test_intervals_of_coefficients_hold_the_truth_in_95_of_100():
    """400 simulations: the error of a share is 1.1 %; 92 to 98 % is 2.8 errors each way."""
    generator, truth = np.random.default_rng(5), np.array([0.8, 0.25])
    held, ratings_held = [], []
    for _ in range(400):
        fitted = ratings_of_votes(*votes_with_covariates(generator, 600, truth), items=ITEMS)
        low, high = fitted.coefficient_interval
        held.append((low <= truth) & (truth <= high))
        ratings_held.append(((fitted.low <= TRUTH) & (fitted.high >= TRUTH)).mean())
    assert (np.abs(np.mean(held, axis=0) - 0.95) < 0.03).all()
    assert abs(np.mean(ratings_held) - 0.95) < 0.03


# ── resamples ─────────────────────────────────────────────────────────────────────────


def test_a_batch_of_weightings_is_fitted_as_choix_fits_each():
    generator = np.random.default_rng(2)
    wins, _ = simulated(generator, tie=0, least=5, most=60)
    left, right = np.triu_indices(ITEMS, 1)
    counts = np.stack([wins[left, right], np.zeros(len(left)), wins[right, left]], axis=1)
    grouped = Grouped(left=left, right=right, covariates=np.zeros((len(left), 0)), counts=counts)
    rows = Rows(grouped, items=ITEMS, with_tie=False, prior=0.0)
    weights = generator.gamma(counts[:, :, None], size=(*counts.shape, 7))
    fitted = rows.refit(np.zeros((ITEMS, 7)), weights, chord=None)
    near = inverse(rows.information(fitted[:, :1], counts[:, :, None])[0])
    by_chord = rows.refit(np.repeat(fitted[:, :1], 7, axis=1), weights, chord=near)
    for number in range(7):
        matrix = np.zeros((ITEMS, ITEMS))
        matrix[left, right], matrix[right, left] = weights[:, 0, number], weights[:, 2, number]
        expected = choix.ilsr_pairwise_dense(matrix, tol=1e-10)
        assert fitted[:, number] == pytest.approx(expected - expected.mean(), abs=1e-6)
        assert by_chord[:, number] == pytest.approx(expected - expected.mean(), abs=1e-3)


def test_resamples_are_the_same_for_a_seed_and_others_for_another():
    wins, ties = simulated(np.random.default_rng(3), tie=TIE, least=5, most=60)
    first, same, other = (
        bradley_terry_ratings(wins, ties, bootstrap=20, seed=seed).resampled for seed in (1, 1, 2)
    )
    assert first.tolist() == same.tolist()
    assert not np.isclose(first, other).any()


# The spread of 1,000 resamples has an error of 1 / √2000 = 2.2 %, dealing into 4,096 blocks adds 1.1 %.
@pytest.mark.parametrize("at_most", [10**9, 0], ids=["each refitted", "one step"])
def test_resamples_spread_as_the_sandwich_says(at_most: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ratings, "_MOST_REFITTED", at_most)
    monkeypatch.setattr(ratings, "_REFITTED_THOUGH_VOTES_ARE_PLENTY", at_most)
    votes = votes_with_covariates(np.random.default_rng(4), 20_000, np.array([0.8, 0.25]))
    fitted = ratings_of_votes(*votes, items=ITEMS, bootstrap=1000)
    errors = np.sqrt(np.diag(fitted.parameter_covariance))
    assert fitted.resampled.std(axis=0) / errors == pytest.approx(np.ones(ITEMS + 3), abs=0.1)
    assert (fitted.resampled.std(axis=0) / errors).mean() == pytest.approx(1, abs=0.04)
    assert (fitted.resampled.mean(axis=0) - fitted.parameters) / errors == pytest.approx(
        np.zeros(ITEMS + 3), abs=0.15
    )


def test_every_resample_rates_an_item_that_lost_only_once():
    """Drawn vote by vote, a third of the resamples would miss that defeat and have no finite rating."""
    fitted = bradley_terry_ratings([[0, 12, 9], [1, 0, 6], [0, 5, 0]], bootstrap=1000)
    assert np.isfinite(fitted.resampled).all()
    assert fitted.low[0] < fitted.ratings[0] < fitted.high[0] < 20


@pytest.mark.parametrize("at_most", [10**9, 0], ids=["each refitted", "one step"])
def test_what_only_the_prior_speaks_of_is_as_wide_as_the_prior(at_most: int, monkeypatch: pytest.MonkeyPatch):
    """Item 2 met nobody: its rating is N(0, 1 / prior) about the mean of three, so 2 / 3 of that variance
    and the little that the mean of the others adds."""
    monkeypatch.setattr(ratings, "_MOST_REFITTED", at_most)
    monkeypatch.setattr(ratings, "_REFITTED_THOUGH_VOTES_ARE_PLENTY", at_most)
    fitted = bradley_terry_ratings([[0, 40, 0], [30, 0, 0], [0, 0, 0]], prior=WEAK_PRIOR, bootstrap=2000)
    error = np.sqrt(fitted.covariance[2, 2])
    assert error == pytest.approx(np.sqrt(2 / 3 / WEAK_PRIOR), rel=0.01)
    assert fitted.resampled[:, 2].std() == pytest.approx(error, rel=0.06)
