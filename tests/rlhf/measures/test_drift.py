"""Drift of preferences: found where it is simulated; a discount comes closer to the present truth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.rlhf.people import Floats, Person, judged
from training.contract.validation import DriftFigures
from training.rlhf.measures.linear_choice import LinearScore, choices_of, fit_at
from training.rlhf.measures.people import discounts, measure_drift, newest_round
from training.rlhf.tokens.example import Example

BEFORE, NOW = (1.5, 1.5, 0.0), (1.5, -1.5, 0.0)
STRENGTH = 0.01


def rounds_of(tastes: list[tuple[float, ...]], *, seed: int, each: int = 80) -> tuple[Floats, list[Example]]:
    """Rounds 1, 2, … of judgments, each with its own taste."""
    parts = [
        judged({"a": Person(taste=taste)}, each, seed=10 * seed + number, round_number=number)
        for number, taste in enumerate(tastes, start=1)
    ]
    return np.concatenate([table for table, _ in parts]), [example for _, some in parts for example in some]


def measured(features: Floats, examples: list[Example]) -> DriftFigures:
    newest = newest_round(examples)
    assert newest is not None
    figures = measure_drift(
        features,
        choices_of(examples, whole=False),
        [example.round for example in examples],
        newest=newest,
        strength=STRENGTH,
    )
    assert figures is not None
    return figures


def fitted(features: Floats, examples: list[Example], half_life: float | None) -> LinearScore:
    if half_life is not None:
        factors = discounts([example.round for example in examples], newest=4, half_life=half_life)
        examples = [
            replace(example, weight=factor) for example, factor in zip(examples, factors, strict=True)
        ]
    return fit_at(features, choices_of(examples, whole=False), STRENGTH)


@pytest.mark.parametrize("seed", range(3))
def test_a_simulated_drift_is_found_and_its_discount_comes_closer_to_the_present_truth(seed: int) -> None:
    features, examples = rounds_of([BEFORE, BEFORE, BEFORE, NOW], seed=seed)

    figures = measured(features, examples)

    assert figures.round == 4
    assert figures.judgments == 80
    assert figures.p_value < 0.01
    assert figures.applied
    truth = np.array(NOW) / np.linalg.norm(NOW)

    def closeness(score: LinearScore) -> float:
        return float(score.weight @ truth / np.linalg.norm(score.weight))

    assert closeness(fitted(features, examples, figures.half_life)) > closeness(
        fitted(features, examples, None)
    )


def test_without_drift_a_discount_is_seldom_applied() -> None:
    applied = [measured(*rounds_of([NOW, NOW, NOW], seed=seed, each=40)).applied for seed in range(40, 60)]

    # At 5 % three of twenty or more happen once in thirteen trials; these seeds are fixed.
    assert sum(applied) <= 2


def test_a_judgment_of_one_half_lifes_age_counts_half() -> None:
    assert discounts([4, 3, 2, 5], newest=4, half_life=2.0) == pytest.approx([1, 2**-0.5, 0.5, 1])


def test_a_round_of_few_prompts_is_not_the_present() -> None:
    _, examples = rounds_of([NOW, NOW], seed=1, each=30)
    _, few = judged({"a": Person(taste=NOW)}, 5, seed=9, round_number=3)

    assert newest_round([*examples, *few]) == 2
    assert newest_round(examples[:30]) is None
    assert newest_round([]) is None
