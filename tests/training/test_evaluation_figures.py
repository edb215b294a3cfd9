"""The arithmetic of evaluations, by hand and by simulation."""

import numpy as np
import pytest

from training.evaluation import Found, figures_of, mean_of, outcome_of, ratio_of, win_rate


def test_a_tie_counts_half():
    assert [outcome_of(1, 2), outcome_of(2, 2), outcome_of(3, 2)] == [1, 0.5, 0]
    # (1 + 1/2 + 0 + 1/2) / 4
    assert win_rate([[1], [0.5], [0], [0.5]]).value == 0.5


def test_votes_of_one_prompt_are_drawn_together():
    # One prompt with a hundred votes and one without a winner: two prompts, so nearly no certainty.
    told = win_rate([[1.0] * 100, [0.0]])
    assert told.value == pytest.approx(100 / 101)
    assert told.prompts == 2
    assert (told.low, told.high) == (0.0, 1.0)


def test_unanimous_votes_do_not_make_certain():
    # Wilson 1927: of n wins in n the lower end is n / (n + z²), with z² = 3.8415.
    assert win_rate([[1.0]] * 10).low == pytest.approx(10 / 13.8415, abs=1e-4)
    assert win_rate([[0.0]] * 4).high == pytest.approx(3.8415 / 7.8415, abs=1e-4)


def test_the_interval_of_a_win_rate_covers_the_truth_about_as_often_as_it_says():
    generator = np.random.default_rng(7)
    covered = 0
    for _ in range(400):
        told = win_rate([[float(won)] for won in generator.random(60) < 0.6])
        covered += told.low <= 0.6 <= told.high
    assert 0.90 <= covered / 400 <= 0.98


def test_ratios_are_of_sums_and_undefined_against_nothing():
    assert ratio_of([2, 4], [1, 2]).value == 2
    assert ratio_of([3, 1], [1, 3]).value == 1
    assert ratio_of([1], [0]) is None
    assert mean_of([]) is None
    assert win_rate([[]]) is None


def test_a_rule_counts_only_prompts_on_both_texts_of_which_it_has_a_verdict():
    found = [
        Found(texts=("a", "b"), heads={}, rules={"right": (0.0, 1.0)}),
        Found(texts=("a", "b"), heads={}, rules={"right": (None, 1.0)}),
        Found(texts=("a", "a"), heads={}, rules={}),
    ]
    figures = figures_of(found)
    assert figures["rules"]["right"]["gain"]["prompts"] == 1
    assert figures["same"] == 1
    assert figures["reward"] is None
