"""Ratings from counts of wins and ties, and from votes with covariates."""

from collections.abc import Hashable, Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from training.ratings.bootstrap import SEED, resampled
from training.ratings.counts import as_counts, as_votes, count_votes, refuse_unbounded
from training.ratings.matrix import Matrix
from training.ratings.result import Floats, Integers, Ratings, Ties
from training.ratings.rows import Grouped, Rows

WEAK_PRIOR = 0.1
"""A prior for leaderboards, where a newcomer may have won all it played: ratings N(0, 10), a standard
deviation of 3.2 or 549 points of Elo. Beside it a hundred votes of an item outweigh it."""


_LARGEST_KEY = 2**60
# Up to here a table of all that could be is quicker than sorting what is.
_MOST_KINDS_COUNTED_DIRECTLY = 4_000_000


def bradley_terry_ratings(
    wins: ArrayLike,
    ties: ArrayLike | None = None,
    *,
    bootstrap: int = 0,
    seed: int = SEED,
    prior: float = 0.0,
) -> Ratings:
    """The likeliest ratings (n,) on the log scale, mean 0, of n items compared in pairs.

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


def ratings_with_covariates(
    left: ArrayLike,
    right: ArrayLike,
    outcome: ArrayLike,
    covariates: ArrayLike,
    *,
    items: int | None = None,
    bootstrap: int = 0,
    seed: int = SEED,
    prior: float = 0.0,
) -> Ratings:
    """Ratings with what covariates explain taken out: "style control" (Li, Angelopoulos & Chiang 2024).

    Votes (votes,): items `left` and `right` by number from 0, `outcome` 1 left won, 0 tie, −1 right won.
    `covariates` (votes, m) say by how much left exceeds right, so that they change their sign with the
    sides: `length_difference`, or for position 1 where left was shown first and −1 where right was. To the
    model of `bradley_terry_ratings` they add x·β in the log odds; β are the result's `coefficients`.
    The prior, where one is given, holds for them too.

    Votes are grouped: those of the same items and covariates cost as one. Round what is continuous.
    """
    lefts, rights, outcomes = as_votes(left, right, outcome)
    _refuse_options(bootstrap, prior)
    wins, ties = count_votes(lefts, rights, outcomes, items=items)
    if not prior:
        refuse_unbounded((wins + ties) > 0)
    grouped = group_votes(lefts, rights, outcomes, covariates)
    return _of_grouped(grouped, wins, ties, bootstrap=bootstrap, seed=seed, prior=prior)


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
    """`ratings_with_covariates` of votes that are counted already, as a database keeps them.

    Each of R rows stands for votes between `left` and `right` (R,) under the same `covariates` (R, m):
    `counts` (R, 3) are how often left won, tied and lost. Exactly what the votes themselves would give.
    """
    lefts, rights = np.asarray(left, dtype=np.int64), np.asarray(right, dtype=np.int64)
    told = np.asarray(counts, dtype=np.float64).reshape(-1, 3)
    _refuse_options(bootstrap, prior)
    wins, ties = np.zeros((items, items)), np.zeros((items, items))
    np.add.at(wins, (lefts, rights), told[:, 0])
    np.add.at(wins, (rights, lefts), told[:, 2])
    np.add.at(ties, (lefts, rights), told[:, 1])
    np.add.at(ties, (rights, lefts), told[:, 1])
    wins, ties = as_counts(wins, ties)
    if not prior:
        refuse_unbounded((wins + ties) > 0)
    given = np.asarray(covariates, dtype=np.float64).reshape(len(told), -1)
    grouped = Grouped(left=lefts, right=rights, covariates=given, counts=told)
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


def group_votes(left: Integers, right: Integers, outcome: Integers, covariates: ArrayLike) -> Grouped:
    """One row for all votes with the same items and covariates, the item with the lower number left."""
    given = np.asarray(covariates, dtype=np.float64)
    if given.ndim != 2 or len(given) != len(left):
        raise ValueError(f"covariates {given.shape} must have one row for each of {len(left)} votes")
    if not np.isfinite(given).all():
        raise ValueError("covariates must be finite; leave out votes of which one is not known")
    swapped = left > right
    low, high = np.minimum(left, right), np.maximum(left, right)
    # Adding 0 makes −0 plain 0, which would group apart.
    turned = np.where(swapped[:, None], -given, given) + 0.0
    size = int(high.max(initial=0)) + 1
    keys, kinds = low * size + high, size**2
    for column in turned.T:
        values = np.unique(column)
        if kinds * len(values) > _LARGEST_KEY:
            seen, keys = np.unique(keys, return_inverse=True)
            kinds = len(seen)
        keys, kinds = keys * len(values) + np.searchsorted(values, column), kinds * len(values)
    if kinds > _MOST_KINDS_COUNTED_DIRECTLY:
        seen, keys = np.unique(keys, return_inverse=True)
        kinds = len(seen)
    cells = keys * 3 + 1 - np.where(swapped, -outcome, outcome)
    counts = np.bincount(cells, minlength=3 * kinds).reshape(-1, 3).astype(np.float64)
    rows = np.flatnonzero(counts.any(axis=1))
    example = np.zeros(kinds, dtype=np.int64)
    example[keys] = np.arange(len(keys))
    some = example[rows]
    return Grouped(left=low[some], right=high[some], covariates=turned[some], counts=counts[rows])


def length_difference(left: ArrayLike, right: ArrayLike, *, levels: int = 10) -> Floats:
    """(l − r) / (l + r) of two lengths, rounded to 1 / `levels` so that votes group; 0 where both are 0."""
    lefts, rights = (np.asarray(lengths, dtype=np.float64) for lengths in (left, right))
    total = lefts + rights
    share = np.divide(lefts - rights, total, out=np.zeros_like(total), where=total > 0)
    return np.asarray(np.rint(share * levels) / levels)


def ratings_by_group(
    groups: Sequence[Hashable],
    left: ArrayLike,
    right: ArrayLike,
    outcome: ArrayLike,
    *,
    items: int,
    bootstrap: int = 0,
    prior: float = WEAK_PRIOR,
) -> dict[Hashable, Ratings]:
    """Ratings of the same items by tag or by round: `groups` (votes,) names each vote's, in order of sight.

    A vote of several tags is passed once for each. With a prior by default, as few votes make a group: what
    has none there has a rating about 0, an interval as wide as the prior, and `votes` 0.
    """
    lefts, rights, outcomes = as_votes(left, right, outcome)
    if len(groups) != len(lefts):
        raise ValueError(f"{len(groups)} groups do not fit {len(lefts)} votes")
    places: dict[Hashable, list[int]] = {}
    for place, group in enumerate(groups):
        places.setdefault(group, []).append(place)
    return {
        group: bradley_terry_ratings(
            *count_votes(lefts[some], rights[some], outcomes[some], items=items),
            bootstrap=bootstrap,
            prior=prior,
        )
        for group, some in places.items()
    }


def _refuse_options(bootstrap: int, prior: float) -> None:
    if bootstrap < 0 or not 0 <= prior < np.inf:
        raise ValueError(f"bootstrap ({bootstrap}) and prior ({prior}) must not be negative")
