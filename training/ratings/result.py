"""Results of a fit: ratings with their uncertainty, and the refusal where no finite rating fits."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

ELO_PER_UNIT = 400 / math.log(10)
"""One unit of log odds in points of Elo (1978): 400 points are odds of ten to one."""

NORMAL_97_5 = NormalDist().inv_cdf(0.975)


class UnboundedRatingsError(ValueError):
    """No finite ratings fit these votes. `items` are those at fault, by number from 0."""

    def __init__(self, message: str, *, items: Sequence[int]) -> None:
        remedy = "Compare them further, leave them out, or pass prior=WEAK_PRIOR."
        super().__init__(f"{message} {remedy}")
        self.items = tuple(items)


class Ties(Enum):
    """Treatment of ties in a fit."""

    NOT_ASKED = "not asked"
    NONE_SEEN = "none seen"
    FITTED = "fitted"


@dataclass(frozen=True, kw_only=True, eq=False)
class Ratings:
    """Ratings of n items on the scale of log odds, mean 0, in the order of the counts they came from.

    Item i beats item j with odds exp(ratings[i] − ratings[j]), ties apart. Intervals are of 95 %: percentiles
    of the bootstrap where one was asked for, ±1.96 standard errors otherwise. The covariance is computed
    when it is first asked for: it takes as long as the ratings themselves.
    """

    parameters: Floats
    """(n + m,), with ties (n + m + 1,): ratings, coefficients, log ν."""
    votes: Floats
    """(n,) how many votes each item took part in. Without one, a rating is the prior and nothing else."""
    ties: Ties
    resampled: Floats | None = None
    """(bootstrap, parameters) what each resample gave; None without a bootstrap."""
    sandwich: Callable[[], Floats]

    @cached_property
    def parameter_covariance(self) -> Floats:
        """Of all parameters, the ratings about their mean: the sandwich of Huber (1967) and White (1982)."""
        return self.sandwich()

    @cached_property
    def _bounds(self) -> tuple[Floats, Floats]:
        if self.resampled is not None:
            # With the k-th of B as quantile k / (B + 1); NumPy's (k − 1) / (B − 1) cuts both tails too short.
            low, high = np.percentile(self.resampled, [2.5, 97.5], axis=0, method="weibull")
            return low, high
        reach = NORMAL_97_5 * np.sqrt(np.diag(self.parameter_covariance))
        return self.parameters - reach, self.parameters + reach

    @property
    def _of_items(self) -> slice:
        return slice(0, len(self.votes))

    @property
    def _of_covariates(self) -> slice:
        return slice(len(self.votes), len(self.parameters) - (self.ties is Ties.FITTED))

    @property
    def ratings(self) -> Floats:
        """(n,)"""
        return self.parameters[self._of_items]

    @property
    def covariance(self) -> Floats:
        """(n, n), of the ratings about their mean."""
        return self.parameter_covariance[self._of_items, self._of_items]

    @property
    def low(self) -> Floats:
        """(n,)"""
        return self._bounds[0][self._of_items]

    @property
    def high(self) -> Floats:
        """(n,)"""
        return self._bounds[1][self._of_items]

    @property
    def coefficients(self) -> Floats:
        """(m,) what one unit of each covariate adds to the log odds of the left item."""
        return self.parameters[self._of_covariates]

    @property
    def coefficient_interval(self) -> tuple[Floats, Floats]:
        """(m,) and (m,)"""
        return self._bounds[0][self._of_covariates], self._bounds[1][self._of_covariates]

    @property
    def tie(self) -> float | None:
        """Davidson's ν: two equal items tie with chance ν / (2 + ν). 0 where no vote was a tie."""
        if self.ties is Ties.FITTED:
            return math.exp(self.parameters[-1])
        return 0.0 if self.ties is Ties.NONE_SEEN else None

    @property
    def order(self) -> Integers:
        """(n,) the items, best first; equals keep the order of their numbers."""
        return np.argsort(-self.ratings, kind="stable")

    def elo(self, values: Floats | None = None, *, mean: float = 1000.0) -> Floats:
        """Log odds (by default the ratings; `low` and `high` as well) in points of Elo about `mean`."""
        return mean + ELO_PER_UNIT * (self.ratings if values is None else values)
