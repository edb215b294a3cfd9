"""Votes one by one, as tests and benchmarks draw them, for ratings that take counts."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from training.ratings import Ratings, ratings_of_counts

Floats = NDArray[np.float64]


def count_votes(
    left: ArrayLike, right: ArrayLike, outcome: ArrayLike, *, items: int | None = None
) -> tuple[Floats, Floats]:
    """Return wins and ties, (n, n), of votes (votes,): outcome 1 left won, 0 tie, −1 right won."""
    lefts, rights, outcomes = (np.asarray(values) for values in (left, right, outcome))
    size = int(max(lefts.max(), rights.max())) + 1 if items is None else items
    wins, ties = np.zeros((size, size)), np.zeros((size, size))
    np.add.at(
        wins, (np.where(outcomes > 0, lefts, rights), np.where(outcomes > 0, rights, lefts)), outcomes != 0
    )
    np.add.at(ties, (lefts, rights), outcomes == 0)
    return wins, ties + ties.T


def ratings_of_votes(
    left: ArrayLike,
    right: ArrayLike,
    outcome: ArrayLike,
    covariates: ArrayLike,
    *,
    items: int = 5,
    **options: Any,
) -> Ratings:
    """Return `ratings_of_counts` of votes, one row for all with the same items and covariates."""
    kinds, place = np.unique(np.column_stack([left, right, covariates]), axis=0, return_inverse=True)
    counts = np.zeros((len(kinds), 3))
    np.add.at(counts, (place.ravel(), 1 - np.asarray(outcome)), 1)
    return ratings_of_counts(
        kinds[:, 0], kinds[:, 1], kinds[:, 2:], counts, items=items, **{"prior": 0.0, **options}
    )
