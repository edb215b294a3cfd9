"""From counted votes to a leaderboard. Loads NumPy and SciPy: import it when somebody opens one."""

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
"""So many rows and columns of win rates a page can bear."""

LENGTH_LEVELS = 10
"""Length differences come in tenths of the sum of both lengths."""

_TWICE_AS_LONG = 1 / 3
Matrix = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """One source on the board. Ratings in points of Elo about 1000."""

    source: int
    rank: int
    """1, and one more for each whose whole interval lies above this one's."""
    rating: float
    low: float
    high: float
    votes: int
    win_rate: float
    """The share of its votes that it won, a tie as half a win."""
    elo: float | None
    p_next: float | None
    """Holm's p of no difference from the next one; None for the last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """How `left` did against `right`; the rate is None where they never met."""

    left: int
    right: int
    votes: int
    rate: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """What length or position does to the odds of winning: a factor with its 95 % interval."""

    factor: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Board:
    """One leaderboard, best first."""

    standings: tuple[Standing, ...] = ()
    matrix: tuple[tuple[Cell, ...], ...] = ()
    votes: int = 0
    ties: int = 0
    both_bad: int = 0
    tie: float | None = None
    """The chance of a tie between two equals; None where there was none."""
    length: Effect | None = None
    """For an answer twice as long as the other."""
    position: Effect | None = None
    """For the answer that was shown first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Ratings within one round or under one tag: source → rating and the ends of its interval."""

    value: str
    votes: int
    ratings: Mapping[int, tuple[float, float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Votes:
    ids: NDArray[np.int64]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    told: NDArray[np.int64]
    """(rows, 4): wins, losses, ties, both bad."""
    style: NDArray[np.int64]
    """(rows, 2): length difference, whether left was first; (rows, 0) where it is not told."""
    ties: NDArray[np.int64]
    """(rows,) what counts as a tie."""

    def matrices(self) -> tuple[Matrix, Matrix]:
        size = (len(self.ids), len(self.ids))
        wins, tied = np.zeros(size), np.zeros(size)
        np.add.at(wins, (self.left, self.right), self.told[:, 0])
        np.add.at(wins, (self.right, self.left), self.told[:, 1])
        np.add.at(tied, (self.left, self.right), self.ties)
        np.add.at(tied, (self.right, self.left), self.ties)
        return wins, tied


def board(rows: Sequence[tuple[int, ...]], *, both_bad: bool, elo: Mapping[int, float]) -> Board:
    """The leaderboard of counted votes.

    rows: left, right, wins, losses, ties, both bad; with style control also length difference and whether
    left was first, after right. both_bad: whether that is a tie, or left out. elo: points by source.
    """
    votes = _votes(rows, both_bad=both_bad)
    if votes is None:
        return Board()
    wins, tied = votes.matrices()
    style = votes.style.shape[1] > 0
    ratings = _controlled(votes) if style else bradley_terry_ratings(wins, tied, prior=WEAK_PRIOR)
    rates, met = win_rate_matrix(wins, tied)
    shown = ratings.order[:MOST_IN_MATRIX].tolist()
    ids = votes.ids.tolist()
    return Board(
        standings=tuple(_standings(ids, ratings, wins, tied, elo)),
        matrix=tuple(
            tuple(
                Cell(
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
        ties=int(votes.told[:, 2].sum()),
        both_bad=int(votes.told[:, 3].sum()),
        tie=ratings.tie / (2 + ratings.tie) if ratings.tie else None,
        length=_effect(ratings, 0, _TWICE_AS_LONG) if style else None,
        # The covariate is 1 and −1: against the other place it is two units, of which one is its own.
        position=_effect(ratings, 1, 1.0) if style else None,
    )


def groups(rows: Iterable[tuple[str, *tuple[int, ...]]], *, most: int) -> tuple[Group, ...]:
    """Ratings within each part: rows are its value, then as those of `board`. Those with the most votes."""
    parts: dict[str, list[tuple[int, ...]]] = {}
    for value, *rest in rows:
        parts.setdefault(value, []).append(tuple(rest))
    found = []
    for value, of_part in parts.items():
        votes = _votes(of_part, both_bad=True)
        if votes is None:
            continue
        ratings = bradley_terry_ratings(*votes.matrices(), prior=WEAK_PRIOR)
        points = (ratings.elo(), ratings.elo(ratings.low), ratings.elo(ratings.high))
        found.append(
            Group(
                value=value,
                votes=int(votes.told.sum()),
                ratings={
                    source: (float(one), float(low), float(high))
                    for source, one, low, high in zip(votes.ids.tolist(), *points, strict=True)
                },
            )
        )
    return tuple(sorted(found, key=lambda group: -group.votes)[:most])


def _votes(rows: Sequence[tuple[int, ...]], *, both_bad: bool) -> _Votes | None:
    if not rows:
        return None
    table = np.array(rows, dtype=np.int64)
    told = table[:, -4:]
    ties = told[:, 2] + (told[:, 3] if both_bad else 0)
    used = told[:, 0] + told[:, 1] + ties > 0
    if not used.any():
        return None
    table, told, ties = table[used], told[used], ties[used]
    ids = np.unique(table[:, :2])
    left, right = np.searchsorted(ids, table[:, 0]), np.searchsorted(ids, table[:, 1])
    return _Votes(ids, left, right, told, table[:, 2:-4], ties)


def _controlled(votes: _Votes) -> Ratings:
    covariates = np.stack(
        [votes.style[:, 0] / LENGTH_LEVELS, np.where(votes.style[:, 1] > 0, 1.0, -1.0)], axis=1
    )
    counts = np.stack([votes.told[:, 0], votes.ties, votes.told[:, 1]], axis=1)
    return ratings_of_counts(votes.left, votes.right, covariates, counts, items=len(votes.ids))


def _standings(
    ids: Sequence[int], ratings: Ratings, wins: Matrix, tied: Matrix, elo: Mapping[int, float]
) -> Iterable[Standing]:
    points, low, high = ratings.elo(), ratings.elo(ratings.low), ratings.elo(ratings.high)
    votes = ratings.votes
    won = (wins.sum(axis=1) + tied.sum(axis=1) / 2) / np.maximum(votes, 1)
    p_next = {difference.better: difference.p_holm for difference in neighbours(ratings)}
    for place in ratings.order.tolist():
        yield Standing(
            source=ids[place],
            rank=1 + int((low > high[place]).sum()),
            rating=float(points[place]),
            low=float(low[place]),
            high=float(high[place]),
            votes=int(votes[place]),
            win_rate=float(won[place]),
            elo=elo.get(ids[place]),
            p_next=p_next.get(place),
        )


def _effect(ratings: Ratings, place: int, units: float) -> Effect:
    low, high = ratings.coefficient_interval
    values = (ratings.coefficients[place], low[place], high[place])
    factor, at_least, at_most = (exp(float(value) * units) for value in values)
    return Effect(factor=factor, low=at_least, high=at_most)
