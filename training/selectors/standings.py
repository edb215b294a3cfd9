"""Leaderboard from counted votes. Loads NumPy and SciPy: import it on use."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp

import numpy as np
from numpy.typing import NDArray

from training.ratings import (
    WEAK_PRIOR,
    Ratings,
    bradley_terry_ratings,
    neighbours,
    ratings_of_counts,
    win_rate_matrix,
)

MOST_IN_MATRIX = 20
"""Most rows and columns in the page's matrix of win rates."""

WIDEST_INTERVAL = 400.0
"""Points of Elo. A rating whose 95 % interval is wider is not shown: 400 points are odds of ten to one, so
such an interval spans everything from far ahead to level."""

LENGTH_LEVELS = 10
"""Length differences come in tenths of the sum of both lengths."""

_TWICE_AS_LONG = 1 / 3
Matrix = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """A source on the leaderboard. Ratings in points of Elo about 1000."""

    source: int
    rank: int | None
    """1, plus the number of rated sources whose whole interval lies above this one's; None with too few
    votes."""
    rating: float
    """Best estimate, not to be shown with too few votes."""
    low: float
    high: float
    votes: int
    win_rate: float
    """Share of votes won, a tie as half a win."""
    elo: float | None
    p_next: float | None
    """Holm's p of no difference from the next one; None for the last and with too few votes."""

    @property
    def is_rated(self) -> bool:
        """Return whether there are enough votes for a rating: its interval is narrow enough."""
        return is_narrow(self.low, self.high)


@dataclass(frozen=True, kw_only=True, slots=True)
class PairRecord:
    """The result of `left` against `right`; the rate is None where they never met."""

    left: int
    right: int
    votes: int
    rate: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlEffect:
    """Effect of length or position on the odds of winning: a factor with its 95 % interval."""

    factor: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Board:
    """A leaderboard, best first."""

    standings: tuple[Standing, ...] = ()
    matrix: tuple[tuple[PairRecord, ...], ...] = ()
    votes: int = 0
    ties: int = 0
    both_bad: int = 0
    tie: float | None = None
    """The chance of a tie between two equals; None without ties."""
    length: ControlEffect | None = None
    """For an answer twice as long as the other."""
    position: ControlEffect | None = None
    """For the answer that was shown first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RatingGroup:
    """Ratings within one round or under one tag: source → rating and the ends of its interval."""

    value: str
    votes: int
    ratings: Mapping[int, tuple[float, float, float]] = field(default_factory=dict)

    def is_rated(self, source: int) -> bool:
        """Return whether there are enough votes for a rating of a source."""
        _rating, low, high = self.ratings[source]
        return is_narrow(low, high)


@dataclass(frozen=True, slots=True)
class _Votes:
    ids: NDArray[np.int64]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    counts: NDArray[np.int64]
    """(rows, 4): wins, losses, ties, both bad."""
    style: NDArray[np.int64]
    """(rows, 2): length difference, and if left was first; (rows, 0) without style control."""
    ties: NDArray[np.int64]
    """(rows,) number that counts as a tie."""

    def matrices(self) -> tuple[Matrix, Matrix]:
        size = (len(self.ids), len(self.ids))
        wins, tied = np.zeros(size), np.zeros(size)
        np.add.at(wins, (self.left, self.right), self.counts[:, 0])
        np.add.at(wins, (self.right, self.left), self.counts[:, 1])
        np.add.at(tied, (self.left, self.right), self.ties)
        np.add.at(tied, (self.right, self.left), self.ties)
        return wins, tied


def is_narrow(low: float, high: float) -> bool:
    """Return whether an interval in points of Elo is narrow enough for its rating to be shown."""
    return high - low <= WIDEST_INTERVAL


def board(rows: Sequence[tuple[int, ...]], *, both_bad: bool, elo: Mapping[int, float]) -> Board:
    """Return the leaderboard of counted votes.

    rows: left, right, wins, losses, ties, both bad; with style control also length difference and left first,
    after right. both_bad: count it as a tie, or leave it out. elo: points by source.
    """
    votes = _votes(rows, both_bad=both_bad)
    if votes is None:
        return Board()
    wins, tied = votes.matrices()
    style = votes.style.shape[1] > 0
    ratings = _controlled(votes) if style else bradley_terry_ratings(wins, tied, prior=WEAK_PRIOR)
    rates, met = win_rate_matrix(wins, tied)
    ids = votes.ids.tolist()
    standings = tuple(_standings(ids, ratings, wins, tied, elo))
    shown = [ids.index(standing.source) for standing in standings[:MOST_IN_MATRIX]]
    return Board(
        standings=standings,
        matrix=tuple(
            tuple(
                PairRecord(
                    left=ids[row],
                    right=ids[column],
                    votes=int(met[row, column]),
                    rate=float(rates[row, column]) if met[row, column] else None,
                )
                for column in shown
            )
            for row in shown
        ),
        votes=int(wins.sum() + tied.sum() / 2),
        ties=int(votes.counts[:, 2].sum()),
        both_bad=int(votes.counts[:, 3].sum()),
        tie=ratings.tie / (2 + ratings.tie) if ratings.tie else None,
        length=_effect(ratings, 0, _TWICE_AS_LONG) if style else None,
        # The covariate is ±1, so one unit is half the distance between the positions.
        position=_effect(ratings, 1, 1.0) if style else None,
    )


def groups(rows: Iterable[tuple[str, *tuple[int, ...]]], *, most: int) -> tuple[RatingGroup, ...]:
    """Return ratings within each part, those with the most votes. Rows: the part's value, then as in
    `board`."""
    parts: dict[str, list[tuple[int, ...]]] = {}
    for value, *rest in rows:
        parts.setdefault(value, []).append(tuple(rest))
    ratings_by_part = []
    for value, of_part in parts.items():
        votes = _votes(of_part, both_bad=True)
        if votes is None:
            continue
        ratings = bradley_terry_ratings(*votes.matrices(), prior=WEAK_PRIOR)
        points = (ratings.elo(), ratings.elo(ratings.low), ratings.elo(ratings.high))
        ratings_by_part.append(
            RatingGroup(
                value=value,
                votes=int(votes.counts.sum()),
                ratings={
                    source: (float(rating), float(low), float(high))
                    for source, rating, low, high in zip(votes.ids.tolist(), *points, strict=True)
                },
            )
        )
    return tuple(sorted(ratings_by_part, key=lambda group: -group.votes)[:most])


def _votes(rows: Sequence[tuple[int, ...]], *, both_bad: bool) -> _Votes | None:
    if not rows:
        return None
    table = np.array(rows, dtype=np.int64)
    counts = table[:, -4:]
    ties = counts[:, 2] + (counts[:, 3] if both_bad else 0)
    used = counts[:, 0] + counts[:, 1] + ties > 0
    if not used.any():
        return None
    table, counts, ties = table[used], counts[used], ties[used]
    ids = np.unique(table[:, :2])
    left, right = np.searchsorted(ids, table[:, 0]), np.searchsorted(ids, table[:, 1])
    return _Votes(ids, left, right, counts, table[:, 2:-4], ties)


def _controlled(votes: _Votes) -> Ratings:
    covariates = np.stack(
        [votes.style[:, 0] / LENGTH_LEVELS, np.where(votes.style[:, 1] > 0, 1.0, -1.0)], axis=1
    )
    counts = np.stack([votes.counts[:, 0], votes.ties, votes.counts[:, 1]], axis=1)
    return ratings_of_counts(votes.left, votes.right, covariates, counts, items=len(votes.ids))


def _standings(
    ids: Sequence[int], ratings: Ratings, wins: Matrix, tied: Matrix, elo: Mapping[int, float]
) -> Iterable[Standing]:
    """Yield the rated sources, best first, then those with too few votes, likeliest first."""
    points, low, high = ratings.elo(), ratings.elo(ratings.low), ratings.elo(ratings.high)
    votes = ratings.votes
    won = (wins.sum(axis=1) + tied.sum(axis=1) / 2) / np.maximum(votes, 1)
    p_next = {(pair.better, pair.worse): pair.p_holm for pair in neighbours(ratings)}
    rated = [place for place in ratings.order.tolist() if is_narrow(low[place], high[place])]
    others = [place for place in ratings.order.tolist() if place not in rated]
    following = dict(itertools.pairwise(rated))
    for place in (*rated, *others):
        is_rated = place in rated
        yield Standing(
            source=ids[place],
            rank=1 + int((low[rated] > high[place]).sum()) if is_rated else None,
            rating=float(points[place]),
            low=float(low[place]),
            high=float(high[place]),
            votes=int(votes[place]),
            win_rate=float(won[place]),
            elo=elo.get(ids[place]),
            p_next=p_next.get((place, following[place])) if place in following else None,
        )


def _effect(ratings: Ratings, place: int, units: float) -> ControlEffect:
    low, high = ratings.coefficient_interval
    values = (ratings.coefficients[place], low[place], high[place])
    factor, at_least, at_most = (exp(float(value) * units) for value in values)
    return ControlEffect(factor=factor, low=at_least, high=at_most)
