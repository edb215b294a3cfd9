"""The arithmetic of evaluations, by hand and by simulation."""

import numpy as np
import pytest

from training.figures.evaluation_statistics import (
    PromptMeasurements,
    figures_of,
    mean_of,
    outcome_of,
    outcomes_of,
    prompt_outcomes,
    ratio_of,
    tolerance_of,
    win_rate,
)
from training.services.evaluation.decision import Decision, decide


def test_a_tie_counts_half():
    assert [outcome_of(1, 2), outcome_of(2, 2), outcome_of(3, 2)] == [1, 0.5, 0]
    # (1 + 1/2 + 0 + 1/2) / 4
    assert win_rate([1, 0.5, 0, 0.5]).value == 0.5


def test_scores_within_the_tolerance_are_a_tie():
    assert outcome_of(1.0, 1.25, tolerance=0.25) == 0.5
    assert outcome_of(1.25, 1.0, tolerance=0.25) == 0.5
    assert outcome_of(1.0, 1.5, tolerance=0.25) == 1


def test_the_tolerance_is_a_multiple_of_the_noise_and_never_below_its_floor():
    # The largest of the differences, times 4.
    assert tolerance_of([0.001, 0.25, 0.0])["value"] == 1.0
    assert tolerance_of([1e-7])["value"] == 1e-4
    assert tolerance_of([])["value"] == 1e-4
    assert tolerance_of([0.001, 0.25])["pairs"] == 2


def test_many_votes_on_one_prompt_are_one_outcome():
    # One prompt with a hundred votes for the new policy, one against it, one that balances.
    assert prompt_outcomes([[1.0] * 100, [0.0], [1.0, 0.0], []]) == [1, 0, 0.5]
    rate = win_rate(prompt_outcomes([[1.0] * 100, [0.0]]))
    assert rate.value == 0.5
    assert rate.prompts == 2
    assert rate.low == pytest.approx(0, abs=0.1)
    assert rate.high == pytest.approx(1, abs=0.1)


def test_unanimous_outcomes_do_not_make_certain():
    few, many = win_rate([1.0] * 4), win_rate([1.0] * 40)
    assert few.low < 0.5 < many.low < 1
    assert (few.high, many.high) == (1, 1)
    assert win_rate([0.0] * 4).high == pytest.approx(1 - few.low)


def test_the_interval_of_a_win_rate_covers_the_truth_at_least_as_often_as_it_says():
    generator = np.random.default_rng(7)
    covered = 0
    for _ in range(200):
        rate = win_rate([float(won) for won in generator.random(60) < 0.6])
        covered += rate.low <= 0.6 <= rate.high
    assert covered / 200 >= 0.95


# The round that the issue describes: 7 held-out prompts, 5 with identical responses, four of these with
# rewards that differ by 1e-7, and two prompts with clearly higher rewards.
_IDENTICAL = [
    PromptMeasurements(texts=("the same", "the same"), reward=(1.0, 1.0 + noise), heads={}, rules={})
    for noise in (1e-7, 1e-7, 1e-7, 1e-7, 0.0)
]
_DIFFERENT = [
    PromptMeasurements(texts=("old", "new"), reward=(0.5, gained), heads={}, rules={})
    for gained in (0.75, 1.0)
]


def test_identical_responses_are_ties_and_gain_exactly_nothing():
    assert [pair.outcome(0.0) for pair in _IDENTICAL] == [0.5] * 5
    assert [pair.gain(0.0) for pair in _IDENTICAL] == [0.0] * 5
    assert PromptMeasurements(texts=("the same", " the same\n"), heads={}, rules={}).same


def test_the_replayed_round_is_no_win():
    figures = figures_of([*_IDENTICAL, *_DIFFERENT])
    assert (figures["prompts"], figures["same"], figures["tied"]) == (7, 5, 0)
    # Two wins and five ties: (2 + 2.5) / 7.
    assert figures["win_rate"]["value"] == pytest.approx(4.5 / 7)
    assert figures["win_rate"]["low"] < 0.5 < figures["win_rate"]["high"]
    # (0.25 + 0.5) / 7; of 7 draws none hits the two with probability (5/7)^7 = 9 %, so 0 is inside.
    assert figures["reward"]["gain"]["value"] == pytest.approx(0.75 / 7)
    assert figures["reward"]["gain"]["low"] <= 0 < figures["reward"]["gain"]["high"]
    assert decide(outcomes_of([*_IDENTICAL, *_DIFFERENT], 1e-4)) == Decision.NOT_ENOUGH_EVIDENCE


def test_scores_within_the_noise_of_the_reward_model_gain_nothing():
    close = PromptMeasurements(
        texts=("old", "new"), reward=(1.0, 1.25), heads={"score": (1.0, 1.25)}, rules={}
    )
    figures = figures_of([close], noise=[0.125])
    # 4 · 0.125 = 0.5 is more than the difference of 0.25.
    assert (figures["tolerance"]["value"], figures["tied"]) == (0.5, 1)
    assert figures["win_rate"]["value"] == figures["heads"]["score"]["win_rate"]["value"] == 0.5
    assert figures["reward"]["gain"]["value"] == 0


def test_the_win_rate_at_equal_length_is_below_the_raw_one_where_only_longer_responses_win():
    longer = [PromptMeasurements(texts=("a" * 20, "b" * 60), reward=(0.0, 1.0), heads={}, rules={})] * 16
    shorter = [PromptMeasurements(texts=("a" * 60, "b" * 20), reward=(1.0, 0.0), heads={}, rules={})] * 4
    figures = figures_of([*longer, *shorter])
    assert figures["win_rate"]["value"] == 0.8
    assert figures["length_controlled"]["value"] < 0.7


def test_ratios_are_of_sums_and_undefined_against_nothing():
    assert ratio_of([2, 4], [1, 2]).value == 2
    assert ratio_of([3, 1], [1, 3]).value == 1
    assert ratio_of([1], [0]) is None
    assert mean_of([]) is None
    assert win_rate([]) is None


def test_a_rule_counts_only_prompts_on_both_texts_of_which_it_has_a_verdict():
    pairs = [
        PromptMeasurements(texts=("a", "b"), heads={}, rules={"right": (0.0, 1.0)}),
        PromptMeasurements(texts=("a", "b"), heads={}, rules={"right": (None, 1.0)}),
        PromptMeasurements(texts=("a", "a"), heads={}, rules={}),
    ]
    figures = figures_of(pairs)
    assert figures["rules"]["right"]["gain"]["prompts"] == 1
    assert figures["same"] == 1
    assert figures["reward"] is None
