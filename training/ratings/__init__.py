"""The leaderboard: Bradley-Terry ratings with intervals. NumPy and SciPy; knows no ORM and no torch.

    result.py         what a fit says: ratings, intervals, win chances, points of Elo
    counts.py         votes as counts; which of them have no finite ratings; win rates
    matrix.py         the point estimate and its covariance, from a matrix of counts
    rows.py           the same model with covariates, for many weightings of the votes at once
    bootstrap.py      resamples
    bradley_terry.py  from counts to ratings
    ladder.py         whether neighbours differ; online Elo

Loads NumPy and SciPy: a web worker imports it when somebody opens the leaderboard.
"""

from training.ratings.bradley_terry import (
    ELO_PER_UNIT,
    WEAK_PRIOR,
    Ratings,
    UnboundedRatingsError,
    bradley_terry_ratings,
    ratings_of_counts,
    win_rate_matrix,
)
from training.ratings.ladder import Difference, elo, holm, neighbours

__all__ = [
    "ELO_PER_UNIT",
    "WEAK_PRIOR",
    "Difference",
    "Ratings",
    "UnboundedRatingsError",
    "bradley_terry_ratings",
    "elo",
    "holm",
    "neighbours",
    "ratings_of_counts",
    "win_rate_matrix",
]
