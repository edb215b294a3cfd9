"""Davidson's model on grouped votes with covariates, for many weightings of the votes at once.

One row stands for all votes that say the same: these two items under these covariates. A batch is one
column for each weighting: a point estimate has one column, a bootstrap one for each resample.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_matrix, csr_matrix

from training.ratings.matrix import (
    LARGEST_RANGE,
    MOST_STEPS,
    TOLERANCE,
    sandwich,
    share_of_step,
)
from training.ratings.result import Floats, Integers, UnboundedRatingsError

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
