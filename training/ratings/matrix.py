"""Ratings from a matrix of counts: a hundred items in about a millisecond."""

import numpy as np
from scipy.linalg.lapack import dposv

from training.ratings.result import Floats, UnboundedRatingsError

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


class Matrix:
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
    """Of a symmetric positive definite matrix; refuses one in which parameters cannot be told apart."""
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
