"""The comparison to ask next: each strategy against hand calculation or brute force."""

import math
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from annotation.acquisition import strategies as acquisition

LOG_3 = math.log(3)  # σ(log 3) = 3/4


def rewards(*members: list[float]) -> np.ndarray:
    return np.array(members, dtype=float)


def test_a_pair_is_most_uncertain_where_both_rewards_are_equal():
    # H(½) = 1 bit. H(¾) = ¾ log2(4/3) + ¼ log2 4 = 0.8112781244591328.
    uncertainties = acquisition.uncertainty([rewards([0, 0]), rewards([LOG_3, 0]), rewards([0, LOG_3])])
    assert uncertainties == pytest.approx([1, 0.8112781244591328, 0.8112781244591328], abs=1e-12)


def test_a_ranking_counts_the_mean_uncertainty_of_its_pairs():
    # Rewards log 3, 0, 0: two pairs at p = ¾ and one at p = ½.
    (uncertainty,) = acquisition.uncertainty([rewards([LOG_3, 0, 0])])
    assert uncertainty == pytest.approx((2 * 0.8112781244591328 + 1) / 3, abs=1e-12)


def test_two_sure_members_that_contradict_each_other_are_uncertain_together():
    # Each is at p = ¾ or ¼; their mean is ½.
    (uncertainty,) = acquisition.uncertainty([rewards([LOG_3, 0], [0, LOG_3])])
    assert uncertainty == pytest.approx(1, abs=1e-12)


def test_a_lead_without_bounds_is_certainty_and_no_error():
    uncertainties = acquisition.uncertainty([rewards([1e6, -1e6]), rewards([-1e6, 1e6])])
    assert uncertainties.tolist() == [0, 0]


def test_disagreement_is_the_variance_of_what_the_members_expect():
    # p is ¾ and ¼: mean ½, variance (¼)² = 1/16. Members of one mind: 0. One member alone: 0.
    disagreements = acquisition.disagreement(
        [rewards([LOG_3, 0], [0, LOG_3]), rewards([LOG_3, 0], [LOG_3, 0]), rewards([LOG_3, 0])]
    )
    assert disagreements == pytest.approx([1 / 16, 0, 0], abs=1e-12)


def test_disagreement_on_a_ranking_is_the_mean_over_its_pairs():
    # Pairs (a, b) and (a, c) at ¾ and ¼, pair (b, c) at ½ twice.
    (disagreement,) = acquisition.disagreement([rewards([LOG_3, 0, 0], [-LOG_3, 0, 0])])
    assert disagreement == pytest.approx(2 / 3 / 16, abs=1e-12)


def test_members_may_differ_in_the_origin_of_their_rewards():
    apart = acquisition.disagreement([rewards([LOG_3, 0], [LOG_3 + 100, 100])])
    assert apart == pytest.approx([0], abs=1e-12)


def test_a_completion_alone_teaches_no_preference():
    assert acquisition.uncertainty([rewards([3.0])]).tolist() == [0]
    assert acquisition.disagreement([rewards([3.0], [4.0])]).tolist() == [0]
    assert acquisition.d_optimal([np.eye(2)[:1]], [rewards([3.0])]).tolist() == [0]


def test_random_values_keep_the_order_of_the_numbers_that_were_drawn():
    values = acquisition.random([2**31 - 1, 0, 2**30])
    assert values.tolist() == [1 - 2**-31, 0, 0.5]
    assert acquisition.in_order(values) == [0, 2, 1]


def test_equal_values_stay_in_the_order_of_age():
    assert acquisition.in_order(np.array([1.0, 2.0, 1.0, 2.0])) == [1, 3, 0, 2]


def test_what_is_unknown_stands_in_the_middle():
    assert acquisition.neutral(np.array([1.0, 9.0, 3.0])) == 3
    assert acquisition.neutral(np.array([])) == 0


def test_nothing_to_order_is_no_error():
    assert acquisition.d_optimal([], []).tolist() == []
    assert acquisition.uncertainty([]).tolist() == []


# ── D-optimality ──────────────────────────────────────────────────────────────────────

PRECISION = 0.5


def information_by_definition(design: np.ndarray, reward: np.ndarray) -> np.ndarray:
    """Σ p(1 − p)(x_a − x_b)(x_a − x_b)ᵀ over the pairs, term by term."""
    total = np.zeros((design.shape[1], design.shape[1]))
    for a, b in combinations(range(len(design)), 2):
        p = np.mean([1 / (1 + math.exp(member[b] - member[a])) for member in reward])
        apart = design[a] - design[b]
        total += p * (1 - p) * np.outer(apart, apart)
    return total


def log_det(*information: np.ndarray, size: int) -> float:
    return float(np.log(np.linalg.det(PRECISION * np.eye(size) + sum(information, np.zeros((size, size))))))


def greedy_by_brute_force(
    designs: list[np.ndarray], reward: list[np.ndarray]
) -> tuple[list[int], np.ndarray]:
    """Every candidate tried in full at every step."""
    size = designs[0].shape[1]
    information = [information_by_definition(x, r) for x, r in zip(designs, reward, strict=True)]
    chosen: list[int] = []
    gains = np.zeros(len(designs))
    while len(chosen) < len(designs):
        before = log_det(*(information[i] for i in chosen), size=size)
        gain_of = {
            i: log_det(*(information[j] for j in [*chosen, i]), size=size) - before
            for i in range(len(designs))
            if i not in chosen
        }
        best = max(gain_of, key=lambda i: gain_of[i])
        chosen.append(best)
        gains[best] = gain_of[best]
    return chosen, gains


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(2, 4))
def test_the_greedy_choice_is_that_of_brute_force(seed: int, count: int, features: int):
    chance = np.random.default_rng(seed)
    sizes = chance.integers(2, 5, size=count)
    designs = [chance.normal(size=(k, features)) for k in sizes]
    scored = [chance.normal(size=(2, k)) for k in sizes]
    order, gains = greedy_by_brute_force(designs, scored)
    computed_gains = acquisition.d_optimal(designs, scored, precision=PRECISION)
    assert computed_gains == pytest.approx(gains, abs=1e-9)
    assert acquisition.in_order(computed_gains) == order


def test_gains_add_up_to_the_whole_determinant():
    chance = np.random.default_rng(7)
    designs = [chance.normal(size=(3, 3)) for _ in range(6)]
    scored = [chance.normal(size=(1, 3)) for _ in range(6)]
    whole = log_det(*map(information_by_definition, designs, scored), size=3) - log_det(size=3)
    computed_gains = acquisition.d_optimal(designs, scored, precision=PRECISION)
    assert computed_gains.sum() == pytest.approx(whole, abs=1e-9)


def test_three_models_are_all_compared_before_a_pair_of_them_comes_again():
    # Models 0, 1, 2 with equal rewards: each pair of models three times over. With two pairs every
    # strength is tied to the others; the best three are the three different pairs.
    pairs = [(0, 1), (0, 1), (0, 1), (1, 2), (1, 2), (1, 2), (0, 2), (0, 2), (0, 2)]
    designs = [np.eye(3)[list(pair)] for pair in pairs]
    values = acquisition.d_optimal(designs, [rewards([0, 0])] * 9)
    first = acquisition.in_order(values)[:3]
    assert {pairs[index] for index in first} == {(0, 1), (1, 2), (0, 2)}
    best = max(
        permutations(range(9), 3),
        key=lambda chosen: log_det(
            *(information_by_definition(designs[i], rewards([0, 0])) for i in chosen), size=3
        ),
    )
    assert {pairs[index] for index in best} == {(0, 1), (1, 2), (0, 2)}


def test_two_answers_of_one_model_say_nothing_about_the_strength_of_models():
    same, apart = np.eye(2)[[0, 0]], np.eye(2)[[0, 1]]
    values = acquisition.d_optimal([same, apart], [rewards([0, 0])] * 2)
    assert values[0] == 0
    assert values[1] > 0


def test_only_so_many_are_chosen_and_the_rest_keep_what_they_would_add():
    chance = np.random.default_rng(3)
    designs = [chance.normal(size=(2, 3)) for _ in range(8)]
    scored = [chance.normal(size=(1, 2)) for _ in range(8)]
    order, gains = greedy_by_brute_force(designs, scored)
    computed_gains = acquisition.d_optimal(designs, scored, precision=PRECISION, most=3)
    assert [computed_gains[i] for i in order[:3]] == pytest.approx([gains[i] for i in order[:3]], abs=1e-9)
    assert acquisition.in_order(computed_gains)[:3] == order[:3]
    information = [information_by_definition(x, r) for x, r in zip(designs, scored, strict=True)]
    chosen = [information[i] for i in order[:3]]
    for i in order[3:]:
        gain = log_det(*chosen, information[i], size=3) - log_det(*chosen, size=3)
        assert computed_gains[i] == pytest.approx(gain, abs=1e-9)


def test_designs_and_rewards_must_belong_together():
    with pytest.raises(ValueError, match="1 designs do not fit 2 comparisons"):
        acquisition.d_optimal([np.eye(2)], [rewards([0, 0])] * 2)
