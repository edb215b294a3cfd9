"""The labels that a strategy saves over chance: the Bayesian head on features, without the application.

python -m tests.benchmarks.loop.acquisition --set writer-keywords writer-both autoj hh-harmless alpacaeval

A pool of open comparisons and a held-out part, by prompt. Labels come in batches, those that the strategy
chooses; after each the head is refitted and its accuracy on the held-out part is taken. Reported is how
many labels a strategy needs to reach the accuracy that chance has at the end, over several seeds. The sets
`writer-…` are responses of a grammar whose true preference is known; annotators judge with noise, and the
accuracy is against the truth. The others are published judgments. The features are those that the
application learns on (`annotation.acquisition.bayesian`).

python -m tests.benchmarks.loop.acquisition --states hh-harmless.npz

The same pairs twice: on these features, and on states of a base model as `tests.benchmarks.reward_stacks
features` writes them, reduced to as many directions.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import django
import numpy as np

# The strategies stand beside their queries of the database, which this needs none of.
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from annotation.acquisition import bayesian  # noqa: E402 - imports models
from annotation.acquisition.posterior import ChoiceTable, Posterior, choices_of, fit, standardised  # noqa: E402
from tests.benchmarks.loop.grammar import TOPICS, prompt_about, response_to  # noqa: E402
from tests.benchmarks.loop.preferences import SCENES, keywords, list_format, weighted  # noqa: E402
from tests.benchmarks.reward_stacks import Pairs  # noqa: E402
from tests.data_sets import data_folder  # noqa: E402

RANDOM = "random"

Course = list[tuple[int, float]]
"""(labels, held-out accuracy) after each batch."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """Pairs with what people say of them."""

    prompts: list[str]
    """(N,)"""
    texts: list[tuple[str, str]]
    """(N,)"""
    first_wins: np.ndarray
    """(N,) what is said when it is asked."""
    truth: np.ndarray
    """(N,) what is right; the same where only the judgments are known."""


def written(scene: str, *, count: int, seed: int) -> Labelled:
    """Pairs of responses from the writer's grammar, judged by a scene's annotators."""
    random = Random(f"{scene} {seed}")
    reward = weighted([(1, keywords), (1, list_format)]) if scene == "both" else SCENES[scene].truth(1)
    prompts: list[str] = []
    texts: list[tuple[str, str]] = []
    choices: list[bool] = []
    truth: list[bool] = []
    while len(prompts) < count:
        first, second = random.sample(TOPICS, 2)
        prompt = prompt_about(first, second)
        pair = (response_to(first, second, random), response_to(first, second, random))
        lead = reward(prompt, pair[0]) - reward(prompt, pair[1])
        if lead == 0:
            continue
        prompts.append(prompt)
        texts.append(pair)
        choices.append(random.random() < 1 / (1 + np.exp(-2 * lead)))
        truth.append(lead > 0)
    return Labelled(prompts, texts, np.array(choices), np.array(truth))


def published(name: str) -> Labelled:
    """Decided pairs of a published set, each in an order by chance."""
    random = Random(name)
    prompts, texts, wins = [], [], []
    for prompt, better, worse in _PUBLISHED[name]():
        first = random.random() < 0.5
        prompts.append(prompt)
        texts.append((better, worse) if first else (worse, better))
        wins.append(first)
    return Labelled(prompts, texts, np.array(wins), np.array(wins))


def _pairs(file: str) -> list[tuple[str, str, str]]:
    pairs = []
    with gzip.open(data_folder() / file, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if row["label"] == "a":
                pairs.append((row["prompt"], row["response_a"], row["response_b"]))
            elif row["label"] == "b":
                pairs.append((row["prompt"], row["response_b"], row["response_a"]))
    return pairs


def _hh_rlhf() -> list[tuple[str, str, str]]:
    pairs = []
    with gzip.open(data_folder() / "hh_rlhf" / "harmless.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            chosen, rejected = (row[name].rsplit("\n\nAssistant:", 1) for name in ("chosen", "rejected"))
            pairs.append((chosen[0], chosen[1].strip(), rejected[1].strip()))
    return pairs


_PUBLISHED: dict[str, Callable[[], list[tuple[str, str, str]]]] = {
    "autoj": lambda: _pairs("auto_j/pairs.jsonl.gz"),
    "alpacaeval": lambda: _pairs("alpaca_eval/pairs.jsonl.gz"),
    "hh-harmless": _hh_rlhf,
}
_WRITTEN = ("length", "format", "keywords", "both")
SETS = (*(f"writer-{scene}" for scene in _WRITTEN), *_PUBLISHED)


def load(name: str, *, seed: int, count: int) -> Labelled:
    """Return the pairs of a set; those of a writer are drawn by the seed."""
    if name in _PUBLISHED:
        return published(name)
    return written(name.removeprefix("writer-"), count=count, seed=seed)


def features_of(pairs: Labelled) -> np.ndarray:
    """Return the features of all completions, standardised over them, (2 N, d)."""
    rows = [
        bayesian.features_of(prompt, text)
        for prompt, both in zip(pairs.prompts, pairs.texts, strict=True)
        for text in both
    ]
    return standardised(np.array(rows))


def by_states(file: Path) -> tuple[Labelled, dict[str, np.ndarray]]:
    """Return decided pairs of a file of states, and features of their completions by name, (2 N, d) each.

    Of a layer the directions of most variance are kept, as many as there are features of texts.
    """
    bayesian = np.load(file)
    pairs = Pairs.read(file)
    random = np.random.default_rng(0)
    first = random.random(len(pairs.winners)) < 0.5
    rows = np.stack(
        [
            np.where(first, pairs.winners, pairs.losers),
            np.where(first, pairs.losers, pairs.winners),
        ],
        axis=1,
    )
    prompts, texts = bayesian["asked"], bayesian["text"]
    labelled = Labelled(
        [str(prompt) for prompt in pairs.prompts],
        [(str(texts[row]), str(texts[other])) for row, other in rows],
        first,
        first,
    )
    of_texts = np.array([bayesian.features_of(str(prompts[row]), str(texts[row])) for row in rows.ravel()])
    features = {"text": standardised(of_texts)}
    for name, states in pairs.blocks.items():
        if name.startswith("mean-"):
            layer = name.removeprefix("mean-")
            features[f"states of layer {layer}"] = standardised(_directions(states)[rows.ravel()])
    return labelled, features


def _directions(states: np.ndarray) -> np.ndarray:
    """Return the coordinates of states along the directions of most variance."""
    centred = states - states.mean(0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    reduced: np.ndarray = centred @ axes[: bayesian.DIMENSIONS].T
    return reduced


def course_of(
    strategy: str, pairs: Labelled, features: np.ndarray, *, seed: int, labels: int, batch: int
) -> Course:
    """Return (labels, held-out accuracy) after each batch."""
    random = np.random.default_rng(seed)
    held_out = _held_out(pairs.prompts, seed)
    pool = np.flatnonzero(~held_out)
    test = np.flatnonzero(held_out)
    differences = features[2 * test] - features[2 * test + 1]
    open_ = list(random.permutation(pool))
    judged: list[int] = [open_.pop() for _ in range(batch)]
    posterior: Posterior | None = None
    course = []
    while True:
        posterior = fit(
            features, _choices(pairs, judged), start=None if posterior is None else posterior.mean
        )
        scores = differences @ posterior.mean
        right = np.where(scores == 0, 0.5, (scores > 0) == pairs.truth[test])
        course.append((len(judged), float(right.mean())))
        if len(judged) >= labels:
            return course
        if strategy == RANDOM:
            judged += [open_.pop() for _ in range(batch)]
            continue
        left = np.array(open_)
        table = np.stack([2 * left, 2 * left + 1], axis=1)
        chosen = bayesian.choose(strategy, posterior, bayesian.Pool(features, table), batch, random)
        judged += [open_[place] for place in chosen]
        gone = set(chosen)
        open_ = [index for place, index in enumerate(open_) if place not in gone]


def _choices(pairs: Labelled, judged: Sequence[int]) -> ChoiceTable:
    return choices_of(
        [((2 * index, 2 * index + 1), (1, 2) if pairs.first_wins[index] else (2, 1)) for index in judged]
    )


def _held_out(prompts: Sequence[str], seed: int) -> np.ndarray:
    """A quarter of the prompts, by chance."""
    known: dict[str, bool] = {}
    random = Random(seed)
    return np.array([known.setdefault(prompt, random.random() < 0.25) for prompt in prompts])


def smooth(courses: Sequence[Course]) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and the mean accuracy over courses, each the mean of three neighbours."""
    labels = np.array([count for count, _ in courses[0]])
    mean = np.mean([[value for _, value in course] for course in courses], axis=0)
    padded = np.concatenate([mean[:1], mean, mean[-1:]])
    return labels, (padded[:-2] + padded[1:-1] + padded[2:]) / 3


def labels_to_reach(courses: Sequence[Course], accuracy: float) -> int | None:
    """Return the labels at which the smoothed mean accuracy is first reached and None where it never is."""
    labels, mean = smooth(courses)
    there = np.flatnonzero(mean >= accuracy)
    return int(labels[there[0]]) if len(there) else None


def study(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run all strategies on one set; print and return their figures."""
    courses: dict[str, list[Course]] = {}
    for place, seed in enumerate(options.seeds):
        if place == 0 or name not in _PUBLISHED:
            pairs = load(name, seed=seed, count=options.pairs)
            features = features_of(pairs)
        _all_strategies(courses, pairs, features, seed, options)
    return _print_figures(name, len(pairs.prompts), courses, options)


def study_states(file: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run all strategies on each kind of features of one file; print and return their figures."""
    pairs, kinds = by_states(file)
    figures = {}
    for kind, features in kinds.items():
        courses: dict[str, list[Course]] = {}
        for seed in options.seeds:
            _all_strategies(courses, pairs, features, seed, options)
        figures[kind] = _print_figures(f"{file.stem}, {kind}", len(pairs.prompts), courses, options)
    return figures


def _all_strategies(
    courses: dict[str, list[Course]],
    pairs: Labelled,
    features: np.ndarray,
    seed: int,
    options: argparse.Namespace,
) -> None:
    for strategy in (RANDOM, *options.strategies):
        courses.setdefault(strategy, []).append(
            course_of(strategy, pairs, features, seed=seed, labels=options.labels, batch=options.batch)
        )


def _print_figures(
    title: str, count: int, courses: dict[str, list[Course]], options: argparse.Namespace
) -> dict[str, Any]:
    _, by_chance = smooth(courses[RANDOM])
    goal = float(by_chance[-1])
    needed_by_chance = labels_to_reach(courses[RANDOM], goal) or options.labels
    print(f"\n{title}: {count} pairs; chance ends at {goal:.3f} after {options.labels} labels")
    print("| strategy | accuracy at a third | at the end | labels to reach it | share of chance's |")
    print("|---|---|---|---|---|")
    figures = {}
    for strategy, course in courses.items():
        labels, mean = smooth(course)
        third = float(np.interp(options.labels / 3, labels, mean))
        needed = labels_to_reach(course, goal)
        share = f"{needed / options.labels:.0%}" if needed else "not reached"
        print(f"| {strategy} | {third:.3f} | {mean[-1]:.3f} | {needed or ''} | {share} |", flush=True)
        figures[strategy] = {"labels": labels.tolist(), "accuracy": mean.tolist(), "needed": needed}
    return {"goal": goal, "needed_by_chance": needed_by_chance, "strategies": figures}


def main() -> None:
    """Print the tables of the chosen sets."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", nargs="+", choices=SETS, default=["writer-keywords", "writer-both", "autoj"])
    parser.add_argument("--states", nargs="+", type=Path, default=[], help="files of states, instead of sets")
    parser.add_argument("--strategies", nargs="+", default=list(bayesian.STRATEGIES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--labels", type=int, default=300)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=2000, help="of a writer's set")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    begun = time.monotonic()
    if options.states:
        by_set = {file.stem: study_states(file, options) for file in options.states}
    else:
        by_set = {name: study(name, options) for name in options.set}
    if options.results:
        command = " ".join(["python -m tests.benchmarks.loop.acquisition", *sys.argv[1:]])
        options.results.write_text(json.dumps({"command": command, "sets": by_set}))
    print(f"\n{time.monotonic() - begun:.0f} s in all")


if __name__ == "__main__":
    main()
