"""The Bayesian head against numerical integration, brute force and figures by hand."""

import numpy as np
import pytest

from annotation.acquisition import bayesian
from annotation.acquisition.bayesian import DIMENSIONS, SURFACE, Pool, choose, features_of, values_of
from annotation.acquisition.posterior import (
    NOBODY,
    ChoiceTable,
    choices_of,
    fit,
    fit_at,
    outlook_of,
    random_labels_worth,
)


def drawn(seed: int, count: int, size: int) -> tuple[np.ndarray, ChoiceTable, np.ndarray]:
    """Features, choices by Bradley and Terry with a known reward, and that reward."""
    random = np.random.default_rng(seed)
    features = random.standard_normal((2 * count, size))
    truth = random.standard_normal(size)
    pairs = np.arange(2 * count).reshape(count, 2)
    lead = (features[pairs[:, 0]] - features[pairs[:, 1]]) @ truth
    swapped = random.random(count) > 1 / (1 + np.exp(-lead))
    pairs[swapped] = pairs[swapped][:, ::-1]
    return features, ChoiceTable(pairs, np.ones(count)), truth


def test_a_ranking_is_the_choices_of_plackett_and_luce():
    choices = choices_of([((4, 5, 6), (2, 1, 3)), ((7, 8), (1, 1)), ((9, 3), (2, 1))])
    assert choices.table.tolist() == [[4, 6, NOBODY], [5, 4, 6], [3, 9, NOBODY]]


def test_the_posterior_of_one_weight_is_that_of_numerical_integration():
    features, choices, _ = drawn(1, 200, 1)
    posterior = fit_at(features, choices, 2.0)
    grid = np.linspace(-5, 5, 20_001)
    lead = (features[choices.table[:, 0]] - features[choices.table[:, 1]]) @ grid[None]
    log = -np.logaddexp(0, -lead).sum(0) - grid**2 + np.log(2 / (2 * np.pi)) / 2
    weight = np.exp(log - log.max())
    mean = (grid * weight).sum() / weight.sum()
    variance = ((grid - mean) ** 2 * weight).sum() / weight.sum()
    assert posterior.mean[0] == pytest.approx(mean, abs=0.03)
    assert posterior.covariance[0, 0] == pytest.approx(variance, rel=0.05)
    evidence = np.log(weight.sum() * (grid[1] - grid[0])) + log.max()
    assert posterior.evidence == pytest.approx(evidence, abs=0.02)


def test_pairs_and_rankings_of_two_give_the_same_posterior():
    features, choices, _ = drawn(2, 60, 3)
    wide = ChoiceTable(np.concatenate([choices.table, np.full((60, 1), NOBODY)], axis=1), choices.weight)
    pair_posterior, ranking_posterior = fit_at(features, choices, 1.0), fit_at(features, wide, 1.0)
    np.testing.assert_allclose(pair_posterior.mean, ranking_posterior.mean, atol=1e-5)
    np.testing.assert_allclose(pair_posterior.covariance, ranking_posterior.covariance, atol=1e-6)


def test_the_mode_of_rankings_has_no_slope_and_the_hessian_is_the_curvature():
    random = np.random.default_rng(3)
    features = random.standard_normal((40, 3))
    rankings = [(tuple(range(4 * i, 4 * i + 4)), tuple(random.permutation(4) + 1)) for i in range(10)]
    posterior = fit_at(features, choices_of(rankings), 0.7)

    def cost(theta: np.ndarray) -> float:
        total = 0.35 * theta @ theta
        for rows, ranks in rankings:
            scores = features[list(rows)] @ theta
            order = np.argsort(ranks)
            for place in range(3):
                total += np.log(np.exp(scores[order[place:]]).sum()) - scores[order[place]]
        return float(total)

    step = 1e-4 * np.eye(3)
    slope = [(cost(posterior.mean + s) - cost(posterior.mean - s)) / 2e-4 for s in step]
    np.testing.assert_allclose(slope, 0, atol=1e-3)
    curvature = [
        [
            (
                cost(posterior.mean + a + b)
                - cost(posterior.mean + a - b)
                - cost(posterior.mean - a + b)
                + cost(posterior.mean - a - b)
            )
            / 4e-8
            for b in step
        ]
        for a in step
    ]
    np.testing.assert_allclose(np.linalg.inv(posterior.covariance), curvature, rtol=1e-3, atol=1e-3)


def test_before_any_judgment_the_posterior_is_the_prior():
    posterior = fit(np.ones((4, 2)), choices_of([]))
    np.testing.assert_allclose(posterior.mean, 0)
    np.testing.assert_allclose(posterior.covariance, np.eye(2) / posterior.precision)


def test_more_judgments_find_the_reward():
    features, choices, truth = drawn(4, 3000, 5)
    posterior = fit(features, choices)
    assert np.corrcoef(posterior.mean, truth)[0, 1] > 0.98


@pytest.mark.parametrize(("mean", "variance"), [(0.0, 1.0), (1.5, 4.0), (-3.0, 0.3)])
def test_values_of_a_pair_are_those_of_numerical_integration(mean: float, variance: float):
    noise = np.linspace(-8, 8, 40_001)
    weight = np.exp(-(noise**2) / 2)
    weight /= weight.sum()
    p = 1 / (1 + np.exp(-(mean + np.sqrt(variance) * noise)))

    def entropy(chance):
        return -(chance * np.log2(chance) + (1 - chance) * np.log2(1 - chance))

    known = entropy(weight @ p) - weight @ entropy(p)
    at = np.array(mean), np.array(variance)
    assert float(bayesian.bald(*at)) == pytest.approx(known, abs=2e-3)
    assert float(bayesian.uncertainty(*at)) == pytest.approx(entropy(weight @ p), abs=0.01)
    assert float(bayesian.delta_ucb(*at)) == pytest.approx(abs(mean) + np.sqrt(variance))
    # Half of the expected gap is the regret of showing both; information for a squared regret of 1.
    regret = weight @ np.abs(mean + np.sqrt(variance) * noise) / 2
    assert float(bayesian.information_directed(*at)) == pytest.approx(known / regret**2, abs=5e-3)


def test_nothing_is_learned_from_two_equal_completions():
    assert float(bayesian.information_directed(np.array(0.0), np.array(0.0))) == 0


def pool_of(seed: int, count: int, size: int, each: int = 2) -> Pool:
    features = np.random.default_rng(seed).standard_normal((each * count, size))
    return Pool(features, np.arange(each * count).reshape(count, each))


def test_a_batch_by_d_optimality_is_the_greedy_one_by_brute_force():
    features, choices, _ = drawn(5, 20, 3)
    posterior = fit_at(features, choices, 1.0)
    pool = pool_of(6, 25, 3)
    chosen = choose("head_d_optimal", posterior, pool, 5, np.random.default_rng(0))
    information = np.linalg.inv(posterior.covariance)
    differences = pool.differences()[:, 0]
    expected: list[int] = []
    for _ in range(5):
        gains = []
        for index, z in enumerate(differences):
            variance = z @ np.linalg.inv(information) @ z
            p = 1 / (1 + np.exp(-(z @ posterior.mean) / np.sqrt(1 + np.pi / 8 * variance)))
            gains.append(-np.inf if index in expected else np.log1p(p * (1 - p) * variance))
        best = int(np.argmax(gains))
        z = differences[best]
        variance = z @ np.linalg.inv(information) @ z
        p = 1 / (1 + np.exp(-(z @ posterior.mean) / np.sqrt(1 + np.pi / 8 * variance)))
        information = information + p * (1 - p) * np.outer(z, z)
        expected.append(best)
    assert chosen == expected


@pytest.mark.parametrize("strategy", bayesian.STRATEGIES)
def test_of_exact_duplicates_one_is_chosen(strategy: str):
    pool = pool_of(7, 6, 3)
    # Comparison 4 holds the completions of comparison 1 the other way round, and 5 those of 0.
    table = pool.table.copy()
    table[4], table[5] = pool.table[1][::-1], pool.table[0]
    posterior = fit_at(np.zeros((2, 3)), choices_of([]), 1.0)
    chosen = choose(strategy, posterior, Pool(pool.features, table), 6, np.random.default_rng(0))
    assert len(chosen) == 4
    assert not {0, 5} <= set(chosen)
    assert not {1, 4} <= set(chosen)


@pytest.mark.parametrize("strategy", bayesian.STRATEGIES)
def test_rankings_have_finite_values_and_enough_are_chosen(strategy: str):
    features, choices, _ = drawn(8, 30, 4)
    posterior = fit_at(features, choices, 1.0)
    pool = pool_of(9, 40, 4, each=4)
    values = values_of(strategy, posterior, pool, np.random.default_rng(1))
    assert values.shape == (40,)
    assert np.isfinite(values).all()
    assert len(set(choose(strategy, posterior, pool, 8, np.random.default_rng(1)))) == 8


def test_the_targeted_value_is_the_fall_in_mean_variance():
    features, choices, _ = drawn(10, 30, 3)
    posterior = fit_at(features, choices, 1.0)
    pool = pool_of(11, 12, 3)
    values = values_of("targeted", posterior, pool, np.random.default_rng(0))
    differences = pool.differences()[:, 0]
    for index, z in enumerate(differences):
        variance = z @ posterior.covariance @ z
        p = 1 / (1 + np.exp(-(z @ posterior.mean) / np.sqrt(1 + np.pi / 8 * variance)))
        after = np.linalg.inv(np.linalg.inv(posterior.covariance) + p * (1 - p) * np.outer(z, z))
        fall = np.einsum("nd,de,ne->n", differences, posterior.covariance - after, differences).mean()
        assert values[index] == pytest.approx(fall)


def test_a_strategy_reaches_with_fewer_labels_what_chance_reaches():
    """Uncertainty against chance on a known reward: half of the labels, the same accuracy."""
    features, _, truth = drawn(12, 1500, 8)
    pairs = np.arange(3000).reshape(1500, 2)
    held_out, pool = pairs[:500], list(range(500, 1500))
    random = np.random.default_rng(0)

    def accuracy(posterior) -> float:
        lead = features[held_out[:, 0]] - features[held_out[:, 1]]
        return float(np.mean((lead @ posterior.mean > 0) == (lead @ truth > 0)))

    def learned(indexes):
        table = np.array(
            [
                pairs[i] if (features[pairs[i][0]] - features[pairs[i][1]]) @ truth > 0 else pairs[i][::-1]
                for i in indexes
            ]
        )
        return fit(features, ChoiceTable(table, np.ones(len(table))))

    by_chance = accuracy(learned(random.choice(pool, 120, replace=False)))
    labelled = [int(index) for index in random.choice(pool, 10, replace=False)]
    while len(labelled) < 60:
        left = [index for index in pool if index not in labelled]
        chosen = choose("head_uncertainty", learned(labelled), Pool(features, pairs[left]), 10, random)
        labelled += [left[place] for place in chosen]
    assert accuracy(learned(labelled)) >= by_chance


def test_the_outlook_of_something_learnable_rises_and_of_chance_does_not():
    features, choices, _ = drawn(13, 300, 4)
    rankings = [(tuple(row), (1, 2)) for row in choices.table.tolist()]
    prompts = list(range(300))
    outlook = outlook_of(features, rankings, prompts, 1.0, np.random.default_rng(0))
    assert outlook.rankings == 300
    assert outlook.points[0][1] < outlook.points[-1][1]
    assert outlook.next_100[1] <= outlook.next_100[0] <= outlook.next_100[2]
    noise = [(row, (1, 2) if index % 2 else (2, 1)) for index, (row, _) in enumerate(rankings)]
    flat = outlook_of(np.zeros_like(features), noise, prompts, 1.0, np.random.default_rng(0))
    assert flat.next_100 == pytest.approx((0, 0, 0), abs=1e-9)


def test_before_forty_rankings_there_is_no_outlook():
    features, choices, _ = drawn(14, 39, 2)
    rankings = [(tuple(row), (1, 2)) for row in choices.table.tolist()]
    assert outlook_of(features, rankings, list(range(39)), 1.0, np.random.default_rng(0)) is None


def test_labels_that_say_more_are_worth_more_of_those_drawn_at_random():
    random = np.random.default_rng(15)
    features = np.concatenate([0.1 * random.standard_normal((200, 3)), 3 * random.standard_normal((40, 3))])
    posterior = fit_at(features, choices_of([]), 1.0)
    pool = np.arange(240).reshape(120, 2)
    telling, dull = pool[100:], pool[:20]
    assert random_labels_worth(features, telling, pool, posterior, random) > 60
    assert random_labels_worth(features, dull, pool, posterior, random) < 10


def test_text_features_count_what_they_name():
    values = dict(
        zip(
            SURFACE,
            features_of("What about tea?", "- Tea is warm.\n- As an AI, I like 2 teas!"),
            strict=False,
        )
    )
    assert values["words"] == pytest.approx(10 / 100)
    assert values["item_share"] == 1
    assert values["overlap_prompt"] == pytest.approx(1 / 3)
    assert values["refusal"] == 1
    assert values["ends"] == 1
    assert len(features_of("", "")) == DIMENSIONS
