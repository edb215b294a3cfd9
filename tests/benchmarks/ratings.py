"""The time that ratings take, beside choix on the same counts: `python -m tests.benchmarks.ratings`.

Both are called in turns, so that what else the machine does meets both. Wall time is the median of all
calls with the least beside it; processor time counts the threads of the linear algebra, too.
"""

import time
from collections.abc import Callable
from functools import partial

import choix
import numpy as np
from numpy.typing import NDArray

from tests.training.ratings.votes import count_votes, ratings_of_votes
from training.ratings import (
    bradley_terry_ratings,
)

Floats = NDArray[np.float64]
Votes = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]

SIZES = ((20, 100_000), (100, 1_000_000))
CALLS_OF_POINT_ESTIMATES = 201
CALLS_WITH_RESAMPLES = 5
RESAMPLES = 1000


def drawn(items: int, votes: int) -> tuple[Floats, Votes, Floats]:
    """Wins without ties, as the peers' benchmark draws them; and votes with ties, lengths and positions."""
    generator = np.random.default_rng(0)
    truth = generator.normal(0, 1, items)
    left = generator.integers(0, items, votes)
    right = (left + generator.integers(1, items, votes)) % items
    gaps = truth[left] - truth[right]
    wins, _ = count_votes(left, right, np.where(generator.random(votes) < 1 / (1 + np.exp(-gaps)), 1, -1))
    covariates = np.stack(
        [
            generator.integers(-5, 6, votes) / 10,
            generator.choice([-1.0, 1.0], votes),
        ],
        axis=1,
    )
    odds = gaps + covariates @ [1.0, 0.2]
    chances = np.stack([np.exp(-odds / 2), np.full(votes, 0.5), np.exp(odds / 2)])
    chances /= chances.sum(axis=0)
    outcome = (generator.random(votes) > np.cumsum(chances, axis=0)[:2]).sum(axis=0) - 1
    return wins, (left, right, outcome), covariates


def report(calls: dict[str, Callable[[], object]], times: int) -> None:
    """Print one row of the table for each, called in turns."""
    wall: dict[str, list[float]] = {name: [] for name in calls}
    processor: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(times):
        for name, call in calls.items():
            began, began_on_processor = time.perf_counter(), time.process_time()
            call()
            wall[name].append(1000 * (time.perf_counter() - began))
            processor[name].append(1000 * (time.process_time() - began_on_processor))
    for name in calls:
        median, least, busy = np.median(wall[name]), min(wall[name]), np.median(processor[name])
        print(f"| {name} | {median:.2f} | {least:.2f} | {busy:.2f} |", flush=True)


def intervals(wins: Floats) -> Floats:
    """The lower ends, which ask for the covariance."""
    return bradley_terry_ratings(wins).low


def main() -> None:
    print("| what | median, ms | least, ms | processor, ms |\n|---|---|---|---|")
    for items, votes in SIZES:
        wins, cast, covariates = drawn(items, votes)
        decided, ties = count_votes(*cast)
        apart = np.abs(bradley_terry_ratings(wins).ratings - choix.ilsr_pairwise_dense(wins)).max()
        label = f"{items} items, {votes:,} votes"
        report(
            {
                f"{label}: choix.ilsr_pairwise_dense": partial(choix.ilsr_pairwise_dense, wins),
                "ratings": partial(bradley_terry_ratings, wins),
                "ratings and intervals": partial(intervals, wins),
                "ratings with ties": partial(bradley_terry_ratings, decided, ties),
            },
            CALLS_OF_POINT_ESTIMATES,
        )
        many = f"{RESAMPLES:,} resamples"
        control = partial(ratings_of_votes, *cast, covariates, items=items, bootstrap=RESAMPLES)
        report(
            {
                f"ties, {many}": partial(bradley_terry_ratings, decided, ties, bootstrap=RESAMPLES),
                f"ties, length, position, {many}, from the votes": control,
            },
            CALLS_WITH_RESAMPLES,
        )
        print(f"| (choix and ours are at most {apart:.0e} apart) | | | |")


if __name__ == "__main__":
    main()
