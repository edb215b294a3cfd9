"""Measure the worth of an annotator's hour: shapes, losses, ties and AI annotators, without the application.

python -m tests.benchmarks.loop.arms --seeds 0 1 2 3 4 --results var/arms.json

The Bayesian linear head of `annotation.acquisition` learns from responses of the writer's grammar, judged by
simulated annotators whose preference is known; its accuracy is against the truth, on pairs of other prompts.
Arms spend the same time by the cost model of `preferences.CostModel`, whatever they ask.

shapes   pairs; rankings of four, read as their pairs (Bradley-Terry) or as a whole (Plackett-Luce)
ties     near responses are called equal: ties dropped, or a half each way, in pairs and rankings
ai       pairs of people, and three pairs for each of theirs by an AI annotator that is right with a stated
         probability, at no cost: not used, weighing 1, or weighing 2a − 1, a its agreement with people on
         their pairs
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

import django
import numpy as np

# The strategies stand beside their queries of the database, which this needs none of.
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from annotation.acquisition import bayesian  # noqa: E402 - imports models
from annotation.acquisition.posterior import fit, sets_of, standardised, table_of  # noqa: E402
from tests.benchmarks.loop.grammar import TOPICS, prompt_about, response_to  # noqa: E402
from tests.benchmarks.loop.preferences import SCENES, Annotator, CostModel  # noqa: E402

HOURS = (0.25, 0.5, 1.0, 1.75, 3.0)
_TESTED = 600
_STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262}
"""97.5 % quantile of Student's t by the number of seeds."""
_AI_PER_PERSON = 3

Weighed = tuple[tuple[int, ...], float]
"""A choice among rows, the chosen one first, and its weight."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One judgment: rows of the feature table and their ranks."""

    rows: tuple[int, ...]
    ranks: tuple[int, ...]


@lru_cache(maxsize=1)
def written(seed: int, comparisons: int) -> tuple[list[tuple[str, str]], np.ndarray]:
    """Return (prompt, response), four responses to a prompt, and the features of all, standardised."""
    random = Random(f"arms {seed}")
    texts: list[tuple[str, str]] = []
    for _ in range(comparisons + _TESTED):
        first, second = random.sample(TOPICS, 2)
        texts += [(prompt_about(first, second), response_to(first, second, random)) for _ in range(4)]
    return texts, standardised(np.array([bayesian.features_of(*pair) for pair in texts]))


class World:
    """Responses, their features and true rewards, and those who judge them."""

    def __init__(self, scene: str, seed: int, *, comparisons: int) -> None:
        self.random = Random(f"judging {scene} {seed}")
        self.people: Sequence[Annotator] = SCENES[scene].annotators(1)
        self.texts, self.features = written(seed, comparisons)
        reward = SCENES[scene].truth(1)
        self.truth = np.array([reward(prompt, text) for prompt, text in self.texts])
        self.tested = 4 * comparisons + 4 * np.arange(_TESTED)

    def judged(self, count: int, size: int) -> list[Judged]:
        """Return the first `count` comparisons of `size` responses as the annotators judge them in turn."""
        judgments = []
        for index in range(count):
            rows = tuple(range(4 * index, 4 * index + size))
            annotator = self.people[index % len(self.people)]
            prompt = self.texts[rows[0]][0]
            ranks = annotator.ranks(prompt, [self.texts[row][1] for row in rows], self.random)
            judgments.append(Judged(rows, tuple(ranks)))
        return judgments

    def by_ai(self, first: int, count: int, accuracy: float) -> list[Judged]:
        """Return pairs as an AI annotator judges them that is right with this probability."""
        judgments = []
        for index in range(first, first + count):
            rows = (4 * index, 4 * index + 1)
            is_first = self.truth[rows[0]] >= self.truth[rows[1]]
            right = self.random.random() < accuracy
            judgments.append(Judged(rows, (1, 2) if is_first == right else (2, 1)))
        return judgments

    def accuracy(self, choices: Sequence[Weighed]) -> float:
        """Return the share of tested pairs, whose rewards differ, that a head on these choices orders."""
        if not choices:
            return 0.5
        table = replace(table_of([choice for choice, _ in choices]), weight=np.array([w for _, w in choices]))
        scores = self.features @ fit(self.features, table).mean
        true = self.truth[self.tested] - self.truth[self.tested + 1]
        scored = scores[self.tested] - scores[self.tested + 1]
        return float(np.mean(np.where(scored == 0, 0.5, scored * true > 0)[true != 0]))


def as_pairs(judged: Sequence[Judged], *, ties: bool = False) -> list[Weighed]:
    """Return decided pairs, those of a judgment sharing the weight of the independent ones, k − 1; with
    `ties` a tied pair counts a half each way."""
    weighed: list[Weighed] = []
    for judgment in judged:
        pairs = list(combinations(zip(judgment.rows, judgment.ranks, strict=True), 2))
        share = (len(judgment.rows) - 1) / len(pairs)
        for (row, rank), (other, of_other) in pairs:
            if rank != of_other:
                weighed.append(((row, other) if rank < of_other else (other, row), share))
            elif ties:
                weighed += [((row, other), share / 2), ((other, row), share / 2)]
    return weighed


def as_rankings(judged: Sequence[Judged]) -> list[Weighed]:
    """Return the choices of whole rankings (Plackett-Luce); those that tie are not chosen from each other."""
    return [(choice, 1.0) for judgment in judged for choice in sets_of(judgment.rows, judgment.ranks)]


def affordable(hours: float, size: int) -> int:
    """Return how many judgments of so many responses the hours pay for."""
    return int(hours * 3600 / CostModel().seconds(size))


def shapes(world: World, hours: float) -> dict[str, float]:
    """Compare pairs with rankings of four at the same time."""
    pairs = world.judged(affordable(hours, 2), 2)
    rankings = world.judged(affordable(hours, 4), 4)
    return {
        "pairs": world.accuracy(as_pairs(pairs)),
        "rankings, Bradley-Terry": world.accuracy(as_pairs(rankings)),
        "rankings, Plackett-Luce": world.accuracy(as_rankings(rankings)),
    }


def ties(world: World, hours: float) -> dict[str, float]:
    """Compare ties dropped with ties that count a half each way."""
    pairs = world.judged(affordable(hours, 2), 2)
    rankings = world.judged(affordable(hours, 4), 4)
    return {
        "pairs, ties dropped": world.accuracy(as_pairs(pairs)),
        "pairs, ties a half": world.accuracy(as_pairs(pairs, ties=True)),
        "rankings, Bradley-Terry, ties a half": world.accuracy(as_pairs(rankings, ties=True)),
        "rankings, Plackett-Luce": world.accuracy(as_rankings(rankings)),
    }


def ai_annotators(accuracy: float) -> Callable[[World, float], dict[str, float]]:
    """Return a comparison with and without an AI annotator of this accuracy."""

    def compared(world: World, hours: float) -> dict[str, float]:
        count = affordable(hours, 2)
        people = as_pairs(world.judged(count, 2))
        ai = as_pairs(world.by_ai(count, _AI_PER_PERSON * count, accuracy))
        # It judges the people's pairs, too: a project knows its agreement with people, not its accuracy.
        again = world.by_ai(0, count, accuracy)
        agreement = _agreement(people, as_pairs(again))
        weight = max(0.0, 2 * agreement - 1)
        return {
            "people alone": world.accuracy(people),
            "with AI, weight 1": world.accuracy([*people, *ai]),
            "with AI, weighed by agreement": world.accuracy(
                [*people, *((choice, weight) for choice, _ in ai)]
            )
            if weight
            else world.accuracy(people),
        }

    return compared


def _agreement(people: Sequence[Weighed], ai: Sequence[Weighed]) -> float:
    ai_choices = {choice for choice, _ in ai}
    return fmean(choice in ai_choices for choice, _ in people) if people else 0.5


STUDIES: dict[str, tuple[str, Callable[[World, float], dict[str, float]]]] = {
    "shapes-format": ("format", shapes),
    "shapes-keywords": ("keywords", shapes),
    "shapes-both": ("both", shapes),
    "ties": ("ties", ties),
    **{f"ai-{share}": ("both", ai_annotators(share / 100)) for share in (60, 70, 80, 90)},
}


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean over seeds and its 95 % interval (Student's t)."""
    mean = fmean(values)
    if len(values) < 2:
        return mean, mean, mean
    half = _STUDENT.get(len(values), 2.0) * stdev(values) / len(values) ** 0.5
    return mean, mean - half, mean + half


def hours_to_reach(hours: Sequence[float], means: Sequence[float], goal: float) -> float | None:
    """Return the hours at which the mean accuracy reaches the goal, between two points by straight line."""
    for place, mean in enumerate(means):
        if mean >= goal:
            if place == 0:
                return hours[0]
            before = means[place - 1]
            return hours[place - 1] + (hours[place] - hours[place - 1]) * (goal - before) / (mean - before)
    return None


def measured(
    names: Sequence[str], seeds: Sequence[int], hours: Sequence[float]
) -> dict[str, dict[str, list[list[float]]]]:
    """Return accuracies by study, arm, hours and seed."""
    most = (1 + _AI_PER_PERSON) * affordable(max(hours), 2)
    accuracies: dict[str, dict[str, list[list[float]]]] = {name: {} for name in names}
    for seed in seeds:
        for name in names:
            scene, compared = STUDIES[name]
            for place, some in enumerate(hours):
                for arm, value in compared(World(scene, seed, comparisons=most), some).items():
                    accuracies[name].setdefault(arm, [[] for _ in hours])[place].append(value)
        print(f"seed {seed}: {time.process_time():.1f} s of processor time", flush=True)
    return accuracies


def print_study(
    name: str, by_seed: Mapping[str, list[list[float]]], hours: Sequence[float]
) -> dict[str, Any]:
    """Print the table of a study; return its figures."""
    arms = {arm: [interval(values) for values in by_hours] for arm, by_hours in by_seed.items()}
    first = next(iter(arms))
    goal = arms[first][-1][0]
    print(f"\n{name}: {first} ends at {goal:.3f}")
    print(f"| arm | {' | '.join(f'{hour:g} h' for hour in hours)} | hours to reach it |")
    print(f"|---|{'---|' * (len(hours) + 1)}")
    for arm, rows in arms.items():
        needed = hours_to_reach(hours, [mean for mean, _, _ in rows], goal)
        cells = [f"{mean:.3f} [{low:.3f}, {high:.3f}]" for mean, low, high in rows]
        reached = "not reached" if needed is None else f"{needed:.2f} ({needed / hours[-1]:.0%})"
        print(f"| {arm} | {' | '.join(cells)} | {reached} |")
    return {"hours": list(hours), "arms": arms, "by_seed": by_seed}


def main() -> None:
    """Print the tables of the chosen studies."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--study", nargs="+", choices=STUDIES, default=list(STUDIES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--hours", nargs="+", type=float, default=list(HOURS))
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    begun = time.monotonic()
    by_study = measured(options.study, options.seeds, options.hours)
    studies = {name: print_study(name, by_seed, options.hours) for name, by_seed in by_study.items()}
    if options.results:
        command = " ".join(["python -m tests.benchmarks.loop.arms", *sys.argv[1:]])
        options.results.write_text(json.dumps({"command": command, "studies": studies}))
    print(f"\n{time.monotonic() - begun:.0f} s in all, {time.process_time():.0f} s of processor time")


if __name__ == "__main__":
    main()
