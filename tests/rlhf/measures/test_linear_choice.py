"""Ridge-regularised linear scores against an independent minimiser, sums by hand and plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from training.rlhf.losses import plackett_luce
from training.rlhf.measures.linear_choice import FOLDS, choices_of, fit_cross_validated, fit_ridge
from training.rlhf.tokens.encoding import EncodedAnswer
from training.rlhf.tokens.example import Example


def ranked(ranks: list[int], *, prompt: str = "p", weight: float = 1.0) -> Example:
    answers = tuple(EncodedAnswer((1, 2, 3), 1) for _ in ranks)
    return Example(f"j-{prompt}", answers, tuple(ranks), weight=weight, prompt=prompt)


def test_a_ranking_pair_by_pair_shares_its_judgments_weight() -> None:
    choices = choices_of([ranked([2, 1], prompt="a"), ranked([1, 3, 2], prompt="b", weight=6.0)], whole=False)

    # Rows 0 and 1 are the pair's; 2, 3 and 4 the ranking's, of which 2 beats 3 and 4, and 4 beats 3.
    assert choices.table.tolist() == [[1, 0], [2, 3], [2, 4], [4, 3]]
    assert choices.weight.tolist() == [1, 2, 2, 2]
    assert choices.prompt.tolist() == [0, 1, 1, 1]


def test_a_whole_ranking_chooses_each_completion_against_those_below_it() -> None:
    choices = choices_of([ranked([3, 1, 2]), ranked([1, 1, 2])], whole=True)

    # No choice of the last; those that tie are not chosen against each other.
    assert choices.table.tolist() == [[1, 0, 2], [2, 0, -1], [3, 5, -1], [4, 5, -1]]


def test_costs_of_a_whole_ranking_add_up_to_plackett_luce() -> None:
    ranks, scores = [2, 4, 1, 3], np.array([0.3, -1.0, 0.8, 0.1])

    costs = choices_of([ranked(ranks)], whole=True).costs(scores)

    expected = plackett_luce(torch.tensor(scores)[None], torch.tensor([ranks]), reduction="none").item()
    assert costs.sum() == pytest.approx(expected, abs=1e-9)


def test_a_partial_ranking_chooses_its_best_against_all_below_and_nothing_among_the_rest() -> None:
    partial = ranked([-1, 1, -1, 2])
    assert choices_of([partial], whole=True).table.tolist() == [[1, 0, 2, 3], [3, 0, 2, -1]]
    pairs = choices_of([partial], whole=False).table.tolist()
    assert sorted(pairs) == [[1, 0], [1, 2], [1, 3], [3, 0], [3, 2]]
    scores = np.array([0.3, -1.0, 0.8, 0.1])
    expected = plackett_luce(torch.tensor(scores)[None], torch.tensor([[-1, 1, -1, 2]]), reduction="none")
    assert choices_of([partial], whole=True).costs(scores).sum() == pytest.approx(expected.item(), abs=1e-9)


def test_the_fit_is_that_of_an_independent_minimiser() -> None:
    generator = np.random.default_rng(3)
    features = generator.normal(size=(40, 3))
    examples = [
        ranked([1, 2] if generator.random() < 0.7 else [2, 1], weight=1 + index % 2) for index in range(20)
    ]
    weights = np.array([example.weight for example in examples])
    differences = np.array(
        [
            features[2 * index + (0 if example.ranks[0] == 1 else 1)]
            - features[2 * index + (1 if example.ranks[0] == 1 else 0)]
            for index, example in enumerate(examples)
        ]
    )

    def cost(theta: np.ndarray) -> float:
        costs = np.log1p(np.exp(-differences @ theta))
        return float((weights * costs).sum() / weights.sum() + 0.2 / 2 * theta @ theta)

    solution = fit_ridge(features, choices_of(examples, whole=False), 0.2, start=np.zeros(3))

    assert solution == pytest.approx(minimize(cost, np.zeros(3), tol=1e-12).x, abs=1e-4)


def test_strength_is_the_best_over_held_out_prompts_by_a_plain_loop() -> None:
    generator = np.random.default_rng(5)
    features = generator.normal(size=(120, 4)) * [1, 10, 0.1, 3] + 7
    truth = (features - features.mean(0)) / features.std(0) @ [1.0, -0.5, 0, 0]
    examples = []
    for index in range(60):
        first_wins = generator.random() < 1 / (1 + math.exp(truth[2 * index + 1] - truth[2 * index]))
        # Three judgments of each prompt.
        examples.append(ranked([1, 2] if first_wins else [2, 1], prompt=f"p{index // 3}"))
    choices = choices_of(examples, whole=False)
    strengths = (1.0, 0.1, 0.01)

    score = fit_cross_validated(features, choices, strengths=strengths)

    table = (features - features.mean(0)) / features.std(0)
    losses = {}
    for strength in strengths:
        costs = []
        for fold in range(FOLDS):
            here = np.array([int(example.prompt[1:]) % FOLDS == fold for example in examples])
            theta = fit_ridge(table, choices.of(~here), strength, start=np.zeros(4))
            costs += choices.of(here).costs(table @ theta).tolist()
        losses[strength] = np.mean(costs)
    assert score.strength == min(losses, key=lambda strength: losses[strength])
    assert score.log_loss == pytest.approx(min(losses.values()), abs=1e-5)
    # Of the features as they are, with mean 0 over all rows.
    theta = fit_ridge(table, choices, score.strength, start=np.zeros(4))
    assert score(features) == pytest.approx(table @ theta, abs=1e-4)


def test_features_that_say_nothing_get_a_strong_ridge_and_cost_no_more_than_a_coin() -> None:
    generator = np.random.default_rng(1)
    examples = [ranked([1, 2] if generator.random() < 0.5 else [2, 1], prompt=f"p{i}") for i in range(80)]

    score = fit_cross_validated(generator.normal(size=(160, 30)), choices_of(examples, whole=False))

    assert score.strength >= 3
    assert score.log_loss == pytest.approx(math.log(2), abs=0.02)


def test_one_prompt_takes_the_strongest_ridge() -> None:
    score = fit_cross_validated(np.eye(2), choices_of([ranked([1, 2])], whole=False), strengths=(5.0, 0.1))

    assert score.strength == 5.0
    assert score(np.eye(2))[0] > score(np.eye(2))[1]
