"""Scores of groups and annotators: known tastes are recovered, and pooled where there are none."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from tests.rlhf.people import Floats, Person, judged
from training.rlhf.measures.linear_choice import choices_of
from training.rlhf.measures.people import PooledScore, fit_pooled, number_people
from training.rlhf.tokens.example import Example

STRENGTH = 0.01
COMMON = (1.5, 0.0, 0.0, 0.0)
LIKES, DISLIKES = (1.5, 1.5, 0.0, 0.0), (1.5, -1.5, 0.0, 0.0)
OPPOSED = {f"a{number}": Person(taste=LIKES, group="A") for number in range(3)} | {
    f"b{number}": Person(taste=DISLIKES, group="B") for number in range(3)
}


def fitted(features: Floats, examples: list[Example], *, groups: bool = True, rank: int = 0) -> PooledScore:
    choices = choices_of(examples, whole=False)
    return fit_pooled(features, choices, number_people(examples), strength=STRENGTH, groups=groups, rank=rank)


def log_loss(scores: Floats, examples: list[Example]) -> float:
    choices = choices_of(examples, whole=False)
    return choices.mean(choices.costs(scores))


@pytest.mark.parametrize("seed", range(3))
def test_two_groups_of_opposite_taste_get_heads_of_opposite_sign_that_beat_the_common_head(seed: int) -> None:
    features, examples = judged(OPPOSED, 300, seed=seed)
    unseen, held_out = judged(OPPOSED, 600, seed=100 + seed)

    score = fitted(features, examples)

    assert score.groups["A"][1] > 0.5
    assert score.groups["B"][1] < -0.5
    assert abs(score.common[1]) < 0.5
    pooled_loss = log_loss(score.scores(unseen, number_people(held_out)), held_out)
    assert pooled_loss < log_loss(unseen @ score.common, held_out) - 0.1


@pytest.mark.parametrize("seed", range(3))
def test_in_one_homogeneous_population_groups_and_annotators_keep_the_common_head(seed: int) -> None:
    alike = {f"a{number}": Person(taste=LIKES, group="AB"[number % 2]) for number in range(6)}
    features, examples = judged(alike, 120, seed=seed)
    unseen, held_out = judged(alike, 600, seed=100 + seed)

    score = fitted(features, examples, rank=2)

    pooled_loss = log_loss(score.scores(unseen, number_people(held_out)), held_out)
    assert pooled_loss < log_loss(unseen @ score.common, held_out) + 0.01


def test_annotators_without_groups_are_told_apart_along_a_few_directions() -> None:
    people = {name: replace(person, group="") for name, person in OPPOSED.items()}
    features, examples = judged(people, 300, seed=5)
    unseen, held_out = judged(people, 600, seed=105)

    score = fitted(features, examples, rank=1)

    assert score.directions.shape == (1, 4)
    deviations = {name: score.annotators[name] @ score.directions for name in people}
    assert all((deviations[name][1] > 0) == name.startswith("a") for name in people)
    pooled_loss = log_loss(score.scores(unseen, number_people(held_out)), held_out)
    assert pooled_loss < log_loss(unseen @ score.common, held_out) - 0.1


def test_who_judged_little_deviates_less_than_who_judged_much_and_a_newcomer_not_at_all() -> None:
    people = {name: replace(person, group="") for name, person in OPPOSED.items()}
    features, examples = judged(people, 300, seed=5)
    few = [example for example in examples if example.annotator == "a0"][:2]
    rows = [index for index in range(300) if examples[index].annotator != "a0" or examples[index] in few]
    table = features.reshape(300, 2, -1)[rows].reshape(2 * len(rows), -1)

    score = fitted(table, [examples[row] for row in rows], rank=1)

    size = {name: float(np.abs(weights).max()) for name, weights in score.annotators.items()}
    assert size["a0"] < 0.7 * (size["a1"] + size["a2"]) / 2
    newcomer = [replace(example, annotator="new") for example in examples]
    scores = score.scores(features, number_people(newcomer, known=number_people(examples)))
    assert scores == pytest.approx(features @ score.common)


def test_a_lean_to_the_response_shown_first_becomes_an_offset_and_not_a_taste() -> None:
    people = {f"a{number}": Person(taste=COMMON) for number in range(3)}
    people["leans"] = Person(taste=COMMON, first=2.0)
    features, examples = judged(people, 400, seed=3)

    score = fitted(features, examples, rank=1)

    assert score.first_place == pytest.approx(0.5, abs=0.3)
    lean = {name: score.first_place + score.annotator_places[name] for name in people}
    assert lean["leans"] > 1.2
    assert all(abs(lean[name]) < 0.6 for name in people if name != "leans")


def test_without_an_order_shown_no_lead_of_a_place_is_fitted() -> None:
    features, examples = judged(OPPOSED, 60, seed=1, shown=False)

    score = fitted(features, examples, rank=1)

    assert score.first_place == 0
    assert set(score.annotator_places.values()) == {0.0}


def test_the_groups_fit_is_the_minimum_that_brute_force_finds() -> None:
    features, examples = judged(OPPOSED, 200, seed=2, shown=False)
    score = fitted(features, examples)
    standard = (features - features.mean(0)) / features.std(0)
    names = ["A", "B"]

    def cost(vector: Floats) -> float:
        common, deviations = vector[:4], vector[4:].reshape(2, 4)
        total = 0.0
        for number, example in enumerate(examples):
            theta = common + deviations[names.index(example.group)]
            ((winner, loser),) = example.pairs
            margin = (standard[2 * number + winner] - standard[2 * number + loser]) @ theta
            total += math.log1p(math.exp(-margin))
        penalty = STRENGTH * common @ common + score.group_strength * (deviations**2).sum()
        return float(total / len(examples) + penalty / 2)

    solution = minimize(cost, np.zeros(12), method="BFGS", options={"gtol": 1e-6}).x

    spread = features.std(0)
    assert math.isfinite(score.group_strength)
    assert score.common * spread == pytest.approx(solution[:4], abs=5e-3)
    for name, expected in zip(names, solution[4:].reshape(2, 4), strict=True):
        assert score.groups[name] * spread == pytest.approx(expected, abs=5e-3)


def test_the_same_judgments_give_the_same_score_to_the_last_bit() -> None:
    features, examples = judged(OPPOSED, 90, seed=4)

    first, second = fitted(features, examples, rank=2), fitted(features, examples, rank=2)

    assert np.array_equal(first.common, second.common)
    assert np.array_equal(first.directions, second.directions)
    assert all(np.array_equal(first.annotators[name], second.annotators[name]) for name in OPPOSED)


def test_a_reviewers_decision_has_the_common_score() -> None:
    features, examples = judged(OPPOSED, 120, seed=6)
    score = fitted(features, examples, rank=1)
    nobody = [replace(example, annotator="", group="") for example in examples]

    scores = score.scores(features, number_people(nobody, known=number_people(examples)))

    assert scores == pytest.approx(features @ score.common)
