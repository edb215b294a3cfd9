"""Ratings: Bradley-Terry with intervals, whether neighbours differ, online Elo. Loads NumPy and SciPy.

Knows no ORM and no torch. A web worker imports it when somebody opens the leaderboard.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, partial
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg.lapack import dposv
from scipy.sparse import csc_matrix, csr_matrix
from scipy.sparse.csgraph import connected_components

# Bradley-Terry ratings with intervals: from counts of votes to ratings, their covariance and resamples.

# ── Result of a fit ──


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


# ── Votes as counts ──


_NAMED = 10


def win_rate_matrix(wins: ArrayLike, ties: ArrayLike | None = None) -> tuple[Floats, Floats]:
    """Return the share of its votes against j that i won, a tie as half a win, and those votes; both (n, n).

    NaN where two were never compared.
    """
    won, tied = as_counts(wins, ties)
    votes = won + won.T + tied
    with np.errstate(invalid="ignore"):
        return (won + tied / 2) / votes, votes


def as_counts(wins: ArrayLike, ties: ArrayLike | None) -> tuple[Floats, Floats]:
    """Both matrices as float64, `ties` of zeros for None; refuses what are no counts."""
    won = np.asarray(wins, dtype=np.float64)
    if won.ndim != 2 or won.shape[0] != won.shape[1] or not len(won):
        raise ValueError(f"wins must be a square matrix, not of shape {won.shape}")
    _refuse_other_than_counts(won, "wins")
    if ties is None:
        return won, np.zeros_like(won)
    tied = np.asarray(ties, dtype=np.float64)
    if tied.shape != won.shape:
        raise ValueError(f"ties {tied.shape} must have the shape of wins {won.shape}")
    _refuse_other_than_counts(tied, "ties")
    if not np.array_equal(tied, tied.T):
        raise ValueError("ties must be symmetric: ties[i, j] and ties[j, i] are one count")
    return won, tied


def _refuse_other_than_counts(counts: Floats, name: str) -> None:
    # One comparison refuses NaN, too.
    if not (counts.min() >= 0 and counts.max() < np.inf):
        raise ValueError(f"{name} must be counts: finite and not negative")
    if counts.diagonal().any():
        item = int(np.flatnonzero(counts.diagonal())[0])
        raise ValueError(f"{name}[{item}, {item}] compares item {item} with itself")


def refuse_unbounded(beaten: NDArray[np.bool_]) -> None:
    """Refuse votes of which no finite ratings are the likeliest; `beaten[i, j]`: i beat or tied with j.

    Without ties these are all votes in which the items fall into two groups of which one never lost to the
    other (Ford 1957): where `beaten` is not strongly connected. With ties it is necessary, not
    sufficient; what is left shows as a fit that runs away.
    """
    if _reaches_all(beaten) and _reaches_all(beaten.T):
        return
    groups, of_item = connected_components(csr_matrix(beaten), directed=True, connection="weak")
    if groups > 1:
        fewest = int(np.argmin(np.bincount(of_item)))
        outside = np.flatnonzero(of_item == fewest).tolist()
        raise UnboundedRatingsError(
            f"Items fall into {groups} groups that were never compared with one another; "
            f"{_named(outside)} stand apart.",
            items=outside,
        )
    groups, of_item = connected_components(csr_matrix(beaten), directed=True, connection="strong")
    between = beaten & (of_item[:, None] != of_item)
    extremes = []
    for group in range(groups):
        inside = of_item == group
        for verb, crossed in (("lost to", between[:, inside]), ("beat", between[inside])):
            if not crossed.any():
                extremes.append((int(inside.sum()), np.flatnonzero(inside).tolist(), verb))
    _, items, verb = min(extremes)
    raise UnboundedRatingsError(f"{_named(items)} never {verb} any other.", items=items)


def _reaches_all(beaten: NDArray[np.bool_]) -> bool:
    """Return whether a path leads from item 0 to every item."""
    reached = np.zeros(len(beaten), dtype=bool)
    reached[0] = True
    fresh = reached
    while fresh.any() and not reached.all():
        fresh = beaten[fresh].any(axis=0) & ~reached
        reached = reached | fresh
    return bool(reached.all())


def _named(items: list[int]) -> str:
    names = ", ".join(str(item) for item in items[:_NAMED])
    more = f" and {len(items) - _NAMED} more" if len(items) > _NAMED else ""
    return f"{'Item' if len(items) == 1 else 'Items'} {names}{more}"


# ── Point estimate and covariance from a matrix of counts ──


MOST_STEPS = 60
TOLERANCE = 1e-6
"""The step at which Newton stops. Its error is the square of that, by the order."""
LARGEST_RANGE = 60.0
"""Log odds between best and worst that no finite number of votes gives; the fit is running away."""
_LONGEST_FULL_STEP = 1.79


def share_of_step(reach: float) -> float:
    """Return the share of a Newton step that raises the likelihood: 1 unless the step is long.

    `reach` is how far the step moves any two outcomes of one vote apart in log odds. For a multinomial
    logit the third derivative along a direction is at most its reach times the second, so that the loss
    after a share t changes by at most λ²·(−t + (exp(t·reach) − t·reach − 1) / reach²) (Bach 2010,
    proposition 1): negative at t = 1 up to a reach of 1.79, least at t = log(1 + reach) / reach.
    """
    return 1.0 if reach <= _LONGEST_FULL_STEP else float(np.log1p(reach) / reach)


class DavidsonModel:
    """Davidson's model (1970) on counts, one parameter for each item and, with ties, log ν after them.

    P(i beats j) ∝ exp(d/2), P(j beats i) ∝ exp(−d/2), P(tie) ∝ ν with d = s_i − s_j; without ties
    that is Bradley & Terry's (1952). What one vote says is u = ½, −½ or 0 and t = 1 for a tie.
    """

    def __init__(self, wins: Floats, ties: Floats, *, with_tie: bool, prior: float) -> None:
        self.wins, self.ties, self.with_tie, self.prior = wins, ties, with_tie, prior
        self.size = len(wins)
        self.won, self.lost = wins.sum(axis=1), wins.sum(axis=0)
        self.votes = wins + wins.T
        if with_tie:
            self.votes += ties
        self.tied = ties.sum() / 2

    def fit(self) -> Floats:
        """Return the likeliest parameters (n,) or (n + 1,), ratings with mean 0. Newton's method."""
        parameters = self._start()
        for _ in range(MOST_STEPS):
            gradient, information = self.step(parameters)
            _, step, failed = dposv(information, gradient)
            if failed:
                break
            reach = float(np.ptp(step[: self.size])) / (2 if self.with_tie else 1)
            if self.with_tie:
                reach = max(2 * reach, reach + abs(float(step[-1])))
            parameters += share_of_step(reach) * step
            if reach < TOLERANCE:
                parameters[: self.size] -= parameters[: self.size].mean()
                return parameters
            if np.ptp(parameters[: self.size]) > LARGEST_RANGE:
                break
        ends = sorted({int(parameters[: self.size].argmax()), int(parameters[: self.size].argmin())})
        raise UnboundedRatingsError(
            f"The ratings run away, those of items {ends} first: too few losses or too many ties.", items=ends
        )

    def _start(self) -> Floats:
        """Return the log odds of winning against everybody: near enough to save a step or two."""
        ratings = np.log((self.won + 0.5) / (self.lost + 0.5))
        ratings -= ratings.mean()
        if not self.with_tie:
            return np.asarray(ratings)
        return np.append(ratings, np.log(2 * (self.tied + 0.5) / (self.won.sum() + 0.5)))

    def _expected(self, parameters: Floats) -> tuple[Floats, Floats | None, Floats]:
        """(n, n): E[u] of i against j, E[t] (None without ties), and E[u²]."""
        # Roots of the odds, so that one division gives the ratio of both outcomes.
        odds = np.exp(parameters[: self.size] / 2)
        up = np.multiply.outer(odds, 1 / odds)
        down = up.T
        both = up + down
        if not self.with_tie:
            return (up - down) / (2 * both), None, np.full((1, 1), 0.25)
        total = both + np.exp(parameters[-1])
        return (up - down) / (2 * total), np.exp(parameters[-1]) / total, both / (4 * total)

    def step(self, parameters: Floats) -> tuple[Floats, Floats]:
        """Return the gradient of the log likelihood and the Fisher information, made invertible."""
        lead, tie, square = self._expected(parameters)
        expected = self.votes * lead
        gradient = (self.won - self.lost) / 2 - expected.sum(axis=1)
        spread = self.votes * square - expected * lead
        information = self._laplacian(spread)
        if tie is not None:
            expected_ties = self.votes * tie
            gradient = np.append(gradient, self.tied - expected_ties.sum() / 2)
            cross = -(expected * tie).sum(axis=1)
            tie_information = (expected_ties * (1 - tie)).sum() / 2
            information = _bordered(information, cross, tie_information)
        # Votes say nothing of the mean of all ratings: any weight on it keeps it where it was.
        information[: self.size, : self.size] += self.votes.mean() + 1e-3
        if self.prior:
            gradient -= self.prior * parameters
            information.flat[:: len(information) + 1] += self.prior
        return gradient, information

    def covariance(self, parameters: Floats) -> Floats:
        """Return the sandwich A⁻¹ (J + prior) A⁻¹: J the squares of what each vote adds to the gradient."""
        _, information = self.step(parameters)
        lead, tie, _ = self._expected(parameters)
        surprise = self.wins * (0.5 - lead) ** 2
        surprise = surprise + surprise.T
        if tie is None:
            meat = self._laplacian(surprise)
        else:
            surprise += self.ties * lead**2
            against = self.wins * (0.5 - lead) * tie
            cross = (against.T - against - self.ties * lead * (1 - tie)).sum(axis=1)
            tie_information = ((self.votes - self.ties) * tie**2 + self.ties * (1 - tie) ** 2).sum() / 2
            meat = _bordered(self._laplacian(surprise), cross, tie_information)
        return sandwich(information, meat, items=self.size, prior=self.prior)

    def _laplacian(self, weights: Floats) -> Floats:
        laplacian = -weights
        laplacian.flat[:: self.size + 1] += weights.sum(axis=1)
        return laplacian


def _bordered(matrix: Floats, cross: Floats, corner: float) -> Floats:
    """Return the matrix with one more row and column."""
    size = len(matrix)
    bordered = np.empty((size + 1, size + 1))
    bordered[:size, :size] = matrix
    bordered[size, :size] = bordered[:size, size] = cross
    bordered[size, size] = corner
    return bordered


def inverse(information: Floats) -> Floats:
    """Of a symmetric positive definite matrix; refuses one whose parameters are not identified."""
    # By LU, not Cholesky: OpenBLAS inverts the Cholesky factor of 100 × 100 with threads, and waits up to
    # half a second for one where other processes hold the cores.
    try:
        return np.asarray(np.linalg.inv(information), dtype=np.float64)
    except np.linalg.LinAlgError:
        message = "These votes do not tell the parameters apart."
        raise UnboundedRatingsError(message, items=()) from None


def sandwich(information: Floats, meat: Floats, *, items: int, prior: float) -> Floats:
    """Return A⁻¹ (J + prior) A⁻¹, the ratings taken about their mean."""
    bread = inverse(information)
    if prior:
        meat = meat + prior * np.eye(len(meat))
    covariance: Floats = bread @ meat @ bread
    if prior:
        # The prior leaves the mean of all ratings a width; no rating about the mean has it.
        centre = np.eye(len(meat))
        centre[:items, :items] -= 1 / items
        covariance = centre @ covariance @ centre
    return covariance


# ── The model with covariates, for many weightings of the votes at once ──
#
# One row stands for all votes that say the same: these two items under these covariates. A batch is one
# column for each weighting: a point estimate has one column, a bootstrap one for each resample.


_ENOUGH_OF_A_CHORD = 0.3
_SINGULAR = 1e-10


@dataclass(frozen=True, kw_only=True, slots=True)
class Grouped:
    """R rows: `counts` (R, 3) are how often left won, tied and lost under `covariates` (R, m)."""

    left: Integers
    right: Integers
    covariates: Floats
    counts: Floats


class Rows:
    """The likelihood on grouped votes. Parameters (P,): n ratings, m coefficients, log ν where ties count.

    log odds d = s_left − s_right + x·β; else as in `matrix.Matrix`.
    """

    def __init__(self, grouped: Grouped, *, items: int, with_tie: bool, prior: float) -> None:
        self.counts, self.items = grouped.counts, items
        self.with_tie, self.prior = with_tie, prior
        rows, covariates = grouped.covariates.shape
        self.linear = items + covariates
        columns = np.empty((rows, 2 + covariates), dtype=np.int64)
        columns[:, 0], columns[:, 1] = grouped.left, grouped.right
        columns[:, 2:] = np.arange(items, self.linear)
        values = np.hstack([np.ones((rows, 1)), -np.ones((rows, 1)), grouped.covariates])
        starts = np.arange(rows + 1) * columns.shape[1]
        self.design: csr_matrix = csr_matrix(
            (values.ravel(), columns.ravel(), starts), shape=(rows, self.linear)
        )
        # Row by row the outer product of the design with itself: the information is a product, too.
        pairs = (columns[:, :, None] * self.linear + columns[:, None, :]).ravel()
        products = (values[:, :, None] * values[:, None, :]).ravel()
        starts = np.arange(rows + 1) * columns.shape[1] ** 2
        self.outer: csc_matrix = csc_matrix((products, pairs, starts), shape=(self.linear**2, rows))
        self.largest = np.abs(grouped.covariates).max(axis=0, initial=0.0)

    def expected(self, parameters: Floats) -> tuple[Floats, Floats | None, Floats]:
        """Of parameters (P, B), each (R, B): E[u], E[t] (None without ties) and E[u²]."""
        odds = self.design @ parameters[: self.linear]
        up = np.exp(-np.abs(odds) / 2)
        both = 1 + up * up
        sign = np.sign(odds)
        if not self.with_tie:
            return sign * (1 - up * up) / (2 * both), None, np.full((1, 1), 0.25)
        tied = np.exp(parameters[-1]) * up
        total = both + tied
        return sign * (1 - up * up) / (2 * total), tied / total, both / (4 * total)

    def gradient(self, parameters: Floats, weights: Floats, centre: Floats | None = None) -> Floats:
        """(P, B) of the log likelihood under weights (R, 3, B) and the prior about `centre` (P, B) or 0."""
        lead, tie, _ = self.expected(parameters)
        votes = weights.sum(axis=1)
        gradient = self.design.T @ ((weights[:, 0] - weights[:, 2]) / 2 - votes * lead)
        if tie is not None:
            gradient = np.vstack([gradient, (weights[:, 1] - votes * tie).sum(axis=0)])
        return np.asarray(gradient - self.prior * (parameters if centre is None else parameters - centre))

    def information(self, parameters: Floats, weights: Floats) -> Floats:
        """(B, P, P), made invertible as in `matrix.Matrix`."""
        lead, tie, square = self.expected(parameters)
        votes = weights.sum(axis=1)
        expected = votes * lead
        information = self._assembled(
            votes * square - expected * lead,
            None if tie is None else -expected * tie,
            None if tie is None else votes * tie * (1 - tie),
        )
        information[:, : self.items, : self.items] += votes.sum() / votes.shape[1] / self.items**2 + 1e-3
        if self.prior:
            information += self.prior * np.eye(information.shape[1])
        return information

    def _assembled(self, both: Floats, cross: Floats | None, corner: Floats | None) -> Floats:
        """(B, P, P) from what each row (R, B) adds for u with u, u with t, and t with t."""
        batch = both.shape[1]
        linear = (self.outer @ both).T.reshape(batch, self.linear, self.linear)
        if cross is None or corner is None:
            return np.ascontiguousarray(linear)
        whole = np.empty((batch, self.linear + 1, self.linear + 1))
        whole[:, :-1, :-1] = linear
        whole[:, -1, :-1] = whole[:, :-1, -1] = (self.design.T @ cross).T
        whole[:, -1, -1] = corner.sum(axis=0)
        return whole

    def scores(self, parameters: Floats) -> tuple[Floats, Floats]:
        """Return a vote's part of the gradient, each (R, 3): by u, along its row of the design, and by t."""
        lead, tie, _ = self.expected(parameters[:, None])
        along = np.array([0.5, 0.0, -0.5]) - lead
        chance = np.zeros_like(lead) if tie is None else tie
        return along, np.array([0.0, 1.0, 0.0]) - chance

    def covariance(self, parameters: Floats) -> Floats:
        """Return the sandwich, (P, P): see `matrix.Matrix.covariance`."""
        along, by_tie = self.scores(parameters)
        parts = [
            (self.counts * first * other).sum(axis=1, keepdims=True)
            for first, other in ((along, along), (along, by_tie), (by_tie, by_tie))
        ]
        meat = self._assembled(parts[0], *(parts[1:] if self.with_tie else (None, None)))[0]
        information = self.information(parameters[:, None], self.counts[:, :, None])[0]
        return sandwich(information, meat, items=self.items, prior=self.prior)

    def fit(self, without_covariates: Floats) -> Floats:
        """The likeliest parameters (P,), ratings with mean 0, from those of the model without covariates."""
        self._refuse_what_cannot_be_told_apart()
        none = np.zeros(self.linear - self.items)
        start = np.concatenate([without_covariates[: self.items], none, without_covariates[self.items :]])
        return self.refit(start[:, None], self.counts[:, :, None], chord=None)[:, 0]

    def _refuse_what_cannot_be_told_apart(self) -> None:
        """Refuse covariates that are constantly 0, or follow from each other or from who plays whom.

        What the information leaves of the covariates when the items have explained their part (its Schur
        complement), as a share of what it was, must not vanish in any direction.
        """
        if self.linear == self.items or self.prior:
            return
        start = np.zeros((self.linear + self.with_tie, 1))
        information = self.information(start, self.counts[:, :, None])[0, : self.linear, : self.linear]
        items, covariates = slice(0, self.items), slice(self.items, self.linear)
        across, block = information[items, covariates], information[covariates, covariates]
        left = block - across.T @ np.linalg.solve(information[items, items], across)
        scale = np.sqrt(np.maximum(np.diag(block), np.finfo(np.float64).tiny))
        values, vectors = np.linalg.eigh(left / np.outer(scale, scale))
        if values[0] < _SINGULAR:
            weights = np.abs(vectors[:, 0])
            guilty = np.flatnonzero(weights > weights.max() / 10).tolist()
            raise ValueError(
                f"covariates {guilty} cannot be told apart from one another or from the items: "
                "leave one out, or pass a prior"
            )

    def refit(
        self, start: Floats, weights: Floats, *, chord: Floats | None, centre: Floats | None = None
    ) -> Floats:
        """Return the likeliest parameters (P, B) under weights (R, 3, B), from `start` (P, B).

        `chord` is the inverse of an information nearby: while steps with it shrink quickly they save each
        weighting its own; else Newton's steps. `centre` (P, B) is that of the prior, its ratings of mean 0.
        """
        parameters, before = start.copy(), np.inf
        for _ in range(MOST_STEPS):
            gradient = self.gradient(parameters, weights, centre)
            try:
                step = self._newton_step(parameters, weights, gradient) if chord is None else chord @ gradient
            except np.linalg.LinAlgError:
                break
            longest = float(np.abs(step).max())
            if chord is not None and longest > _ENOUGH_OF_A_CHORD * before:
                chord = None
                continue
            before = longest
            parameters += step * np.array([share_of_step(reach) for reach in self._reaches(step)])
            if longest < TOLERANCE * (1 if chord is None else 100):
                parameters[: self.items] -= parameters[: self.items].mean(axis=0)
                return parameters
            if np.ptp(parameters[: self.items], axis=0).max() > LARGEST_RANGE:
                break
        worst = parameters[: self.items, int(np.abs(parameters).max(axis=0).argmax())]
        ends = sorted({int(worst.argmax()), int(worst.argmin())})
        raise UnboundedRatingsError(
            f"The ratings run away, those of items {ends} first, or a covariate tells the outcome.",
            items=ends,
        )

    def _newton_step(self, parameters: Floats, weights: Floats, gradient: Floats) -> Floats:
        """(P, B)"""
        solved = np.linalg.solve(self.information(parameters, weights), gradient.T[:, :, None])
        return np.asarray(solved[:, :, 0].T, dtype=np.float64)

    def _reaches(self, step: Floats) -> Floats:
        """(B,) a bound on how far each step moves two outcomes of one vote apart."""
        half = (
            np.ptp(step[: self.items], axis=0) + self.largest @ np.abs(step[self.items : self.linear])
        ) / 2
        return np.asarray(np.maximum(2 * half, half + np.abs(step[-1])) if self.with_tie else 2 * half)


# ── Resamples ──
#
# The Bayesian bootstrap (Rubin 1981): a resample gives each vote an exponential weight of mean 1, where
# Efron's gives it a Poisson count of mean 1. c votes that say the same weigh Gamma(c) together, so counts
# are resampled as counts. Every vote keeps some weight, so where ratings exist they exist in every resample;
# Efron's loses the only defeat of a strong item in a third of them, and has no finite rating there.
#
# A prior is resampled, too: each resample draws its centre, as if it were one more observation. So what only
# the prior speaks of is as uncertain as the prior, here as in the sandwich.


SEED = 20131
_MOST_REFITTED = 12_000_000
_REFITTED_THOUGH_VOTES_ARE_PLENTY = 2_000_000
_PLENTY = 500
"""Votes for each parameter of which one step's error, a share of about 1 / √votes, is small."""
_NUMBERS_AT_ONCE = 400_000
_ENTRIES_AT_ONCE = 2_000_000
_BLOCKS = 4096


def resampled(rows: Rows, fitted: Floats, *, resamples: int, seed: int) -> Floats:
    """Return the parameters of each resample, (resamples, P). Deterministic for a seed.

    Each resample is refitted while rows × resamples is at most 2 million (about a second), or 12 million
    where there are fewer than 500 votes for each parameter. Beyond that one step from the estimate is the
    answer to first order (the k-step bootstrap of Andrews 2002 with k = 1): see `_one_step`.
    """
    generator = np.random.default_rng(seed)
    chord = inverse(rows.information(fitted[:, None], rows.counts[:, :, None])[0])
    plenty = rows.counts.sum() >= _PLENTY * len(fitted)
    most = _REFITTED_THOUGH_VOTES_ARE_PLENTY if plenty else _MOST_REFITTED
    if len(rows.counts) * resamples > most:
        return _one_step(rows, fitted, chord, generator, resamples)
    at_once = min(_NUMBERS_AT_ONCE // max(1, len(rows.counts)), _ENTRIES_AT_ONCE // len(fitted) ** 2)
    size = max(1, min(resamples, at_once))
    parameters = []
    for start in range(0, resamples, size):
        some = min(size, resamples - start)
        weights = generator.standard_gamma(rows.counts[:, :, None], size=(*rows.counts.shape, some))
        same = np.repeat(fitted[:, None], some, axis=1)
        centre = _centres(rows, fitted, generator, some).T
        parameters.append(rows.refit(same, weights, chord=chord, centre=centre).T)
    return np.concatenate(parameters)


def _centres(rows: Rows, fitted: Floats, generator: np.random.Generator, resamples: int) -> Floats:
    """Return the prior's centre in each resample, (resamples, P), of the ratings about their mean."""
    if not rows.prior:
        return np.zeros((resamples, len(fitted)))
    centres = generator.normal(0, rows.prior**-0.5, (resamples, len(fitted)))
    centres[:, : rows.items] -= centres[:, : rows.items].mean(axis=1, keepdims=True)
    return centres


def _one_step(
    rows: Rows, fitted: Floats, chord: Floats, generator: np.random.Generator, resamples: int
) -> Floats:
    """θ* = θ + A⁻¹ Σ (w − 1) g over blocks of votes, w exponential, g what a block adds to the gradient.

    Votes are dealt by chance into 4,096 blocks: with that many, weights for blocks spread θ* as weights for
    votes do, to about one part in a hundred, and there is a thousandth of them to draw. Takes memory and
    time in proportion to the votes.
    """
    along, by_tie = (part.ravel() for part in rows.scores(fitted))
    cells = np.repeat(np.arange(along.size), np.rint(rows.counts.ravel()).astype(np.int64))
    blocks = generator.integers(0, _BLOCKS, len(cells))
    row, width = cells // 3, rows.linear
    added = np.zeros((_BLOCKS, len(fitted)))
    entries = int(rows.design.indptr[1])
    columns, values = (part.reshape(-1, entries) for part in (rows.design.indices, rows.design.data))
    for place in range(entries):
        keys = blocks * width + columns[row, place]
        sums = np.bincount(keys, weights=along[cells] * values[row, place], minlength=_BLOCKS * width)
        added[:, :width] += sums.reshape(_BLOCKS, width)
    if rows.with_tie:
        added[:, width] = np.bincount(blocks, weights=by_tie[cells], minlength=_BLOCKS)
    weights = generator.standard_exponential((resamples, _BLOCKS))
    pull = rows.prior * _centres(rows, fitted, generator, resamples)
    steps = ((weights - 1) @ added + pull) @ chord
    steps[:, : rows.items] -= steps[:, : rows.items].mean(axis=1, keepdims=True)
    moved: Floats = fitted + steps
    return moved


# ── From counts to ratings ──


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
    matrix = DavidsonModel(won, tied, with_tie=with_tie, prior=prior)
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
    fitted = rows.fit(DavidsonModel(wins, ties, with_tie=rows.with_tie, prior=prior).fit())
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


# Significance of differences between neighbours, and Elo vote by vote.


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Two items next to each other in the order, and whether the better one is better."""

    better: int
    worse: int
    difference: float
    """In log odds, not negative."""
    standard_error: float
    p_value: float
    """Two-sided, of no difference, by the normal distribution (Wald)."""
    p_holm: float
    """The same with Holm's correction (1979) for all pairs of neighbours; 0.05 and below is significant."""


def neighbours(ratings: Ratings) -> list[Difference]:
    """Return each item against the next one in the order, best first; n − 1 of them.

    The order was found from the same votes, so that p-values of neighbours err to the side of caution:
    they are next to each other because their ratings are close.
    """
    order = ratings.order
    better, worse = order[:-1], order[1:]
    variances = np.diag(ratings.covariance)
    covariances = ratings.covariance[better, worse]
    errors = np.sqrt(np.maximum(variances[better] + variances[worse] - 2 * covariances, 0.0))
    gaps = ratings.ratings[better] - ratings.ratings[worse]
    # 0 / 0 is two items of which nothing tells them apart.
    z = np.divide(gaps, errors, out=np.zeros_like(gaps), where=errors > 0)
    p_values = np.array([math.erfc(value / math.sqrt(2)) for value in z])
    corrected = holm(p_values)
    return [
        Difference(
            better=int(better[place]),
            worse=int(worse[place]),
            difference=float(gaps[place]),
            standard_error=float(errors[place]),
            p_value=float(p_values[place]),
            p_holm=float(corrected[place]),
        )
        for place in range(len(gaps))
    ]


def holm(p_values: Floats) -> Floats:
    """p-values (m,) corrected for their number (Holm 1979): the k-th smallest, from 0, times m − k, never
    below the one before it, at most 1."""
    order = np.argsort(p_values, kind="stable")
    factors = len(p_values) - np.arange(len(p_values))
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(np.maximum.accumulate(p_values[order] * factors), 1.0)
    return corrected


def elo(
    outcomes: Iterable[tuple[int, int, int]], *, items: int, k: float = 4.0, start: float = 1000.0
) -> Floats:
    """(items,) online Elo (1978): with each vote (left, right, outcome) points go from one to the other.

    k times what was unexpected: result − 1 / (1 + 10^((R_right − R_left) / 400)), a tie as half a win. For
    intuition only: the order of votes changes it, there is no interval. k = 4 is Chatbot Arena's, small
    because models do not change between votes; chess takes 10 to 40.
    """
    points = [start] * items
    for left, right, outcome in outcomes:
        expected = 1 / (1 + 10 ** ((points[right] - points[left]) / 400))
        moved = k * ((1 + outcome) / 2 - expected)
        points[left] += moved
        points[right] -= moved
    return np.array(points)
