"""Ratings from counts of wins and ties, with covariates or without."""

from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from training.ratings.bootstrap import SEED, resampled
from training.ratings.counts import as_counts, refuse_unbounded
from training.ratings.matrix import Matrix
from training.ratings.result import Floats, Ratings, Ties
from training.ratings.rows import Grouped, Rows

WEAK_PRIOR = 0.1
"""A prior for leaderboards, where a newcomer may have won all it played: ratings N(0, 10), a standard
deviation of 3.2 or 549 points of Elo. Beside it a hundred votes of an item outweigh it."""


def bradley_terry_ratings(
    wins: ArrayLike,
    ties: ArrayLike | None = None,
    *,
    bootstrap: int = 0,
    seed: int = SEED,
    prior: float = 0.0,
) -> Ratings:
    """Return the likeliest ratings (n,) on the log scale, mean 0, of n items compared in pairs.

    `wins` (n, n): wins[i, j] is how often i beat j. `ties` (n, n): how often they tied, symmetric, each tie
    counted in both halves; with it the model is Davidson's (1970), P(i beats j) ∝ √(π_i / π_j),
    P(tie) ∝ ν, else Bradley & Terry's (1952); π = exp(rating). 95 % intervals from the sandwich, or
    percentiles of `bootstrap` resamples (see `bootstrap`), reproducible by `seed`.

    Raises UnboundedRatingsError, naming the items, where no finite ratings are the likeliest: items never
    compared with the rest, that won all, or lost all. A `prior` above 0 (see WEAK_PRIOR) always gives
    an answer: it takes each rating, and log ν, for N(0, 1 / prior) beforehand.
    """
    won, tied = as_counts(wins, ties)
    _refuse_options(bootstrap, prior)
    with_tie = bool(tied.any())
    if not prior:
        refuse_unbounded((won + tied) > 0 if with_tie else won > 0)
    matrix = Matrix(won, tied, with_tie=with_tie, prior=prior)
    fitted = matrix.fit()
    samples = None
    if bootstrap:
        if (won % 1).any() or (tied % 1).any():
            raise ValueError("a bootstrap resamples votes: wins and ties must be whole numbers")
        left, right = np.nonzero(np.triu(matrix.votes))
        counts = np.stack([won[left, right], tied[left, right], won[right, left]], axis=1)
        grouped = Grouped(left=left, right=right, covariates=np.zeros((len(left), 0)), counts=counts)
        rows = Rows(grouped, items=len(won), with_tie=with_tie, prior=prior)
        samples = resampled(rows, fitted, resamples=bootstrap, seed=seed)
    return Ratings(
        parameters=fitted,
        votes=matrix.votes.sum(axis=1),
        ties=Ties.FITTED if with_tie else Ties.NOT_ASKED if ties is None else Ties.NONE_SEEN,
        resampled=samples,
        sandwich=partial(matrix.covariance, fitted),
    )


def ratings_of_counts(
    left: ArrayLike,
    right: ArrayLike,
    covariates: ArrayLike,
    counts: ArrayLike,
    *,
    items: int,
    bootstrap: int = 0,
    seed: int = SEED,
    prior: float = WEAK_PRIOR,
) -> Ratings:
    """Ratings with what covariates explain taken out: "style control" (Li, Angelopoulos & Chiang 2024).

    Each of R rows stands for votes between `left` and `right` (R,) under the same `covariates` (R, m):
    `counts` (R, 3) are how often left won, tied and lost. Covariates say by how much left exceeds right, so
    that they change their sign with the sides. To the model of `bradley_terry_ratings` they add x·β in the
    log odds; β are the result's `coefficients`. The prior holds for them too.
    """
    lefts, rights = np.asarray(left, dtype=np.int64), np.asarray(right, dtype=np.int64)
    outcomes = np.asarray(counts, dtype=np.float64).reshape(-1, 3)
    _refuse_options(bootstrap, prior)
    wins, ties = np.zeros((items, items)), np.zeros((items, items))
    np.add.at(wins, (lefts, rights), outcomes[:, 0])
    np.add.at(wins, (rights, lefts), outcomes[:, 2])
    np.add.at(ties, (lefts, rights), outcomes[:, 1])
    np.add.at(ties, (rights, lefts), outcomes[:, 1])
    wins, ties = as_counts(wins, ties)
    if not prior:
        refuse_unbounded((wins + ties) > 0)
    predictors = np.asarray(covariates, dtype=np.float64).reshape(len(outcomes), -1)
    grouped = Grouped(left=lefts, right=rights, covariates=predictors, counts=outcomes)
    return _of_grouped(grouped, wins, ties, bootstrap=bootstrap, seed=seed, prior=prior)


def _of_grouped(
    grouped: Grouped, wins: Floats, ties: Floats, *, bootstrap: int, seed: int, prior: float
) -> Ratings:
    rows = Rows(grouped, items=len(wins), with_tie=bool(ties.any()), prior=prior)
    fitted = rows.fit(Matrix(wins, ties, with_tie=rows.with_tie, prior=prior).fit())
    samples = resampled(rows, fitted, resamples=bootstrap, seed=seed) if bootstrap else None
    return Ratings(
        parameters=fitted,
        votes=(wins + wins.T + ties).sum(axis=1),
        ties=Ties.FITTED if rows.with_tie else Ties.NONE_SEEN,
        resampled=samples,
        sandwich=partial(rows.covariance, fitted),
    )


def _refuse_options(bootstrap: int, prior: float) -> None:
    if bootstrap < 0 or not 0 <= prior < np.inf:
        raise ValueError(f"bootstrap ({bootstrap}) and prior ({prior}) must not be negative")
