"""The alternative-annotator test: when a model may stand in for a person."""

import random

import pytest
from scipy.stats import ttest_1samp

from annotation.agreement.reliability import (
    MARGIN,
    AlternativeAnnotator,
    _p_value,
    _rejected,
    alternative_annotator,
)


def items(number, *, people, model, seed=0):
    """Items whose truth is drawn; each person and the model say it with their own probability."""
    source = random.Random(seed)
    drawn = []
    for _ in range(number):
        truth = source.choice([1, -1])
        said = {
            person: truth if source.random() < accuracy else -truth for person, accuracy in people.items()
        }
        drawn.append((truth if source.random() < model else -truth, said))
    return drawn


def test_a_model_as_good_as_people_may_stand_in_for_one_and_one_that_guesses_may_not():
    people = {1: 0.85, 2: 0.85, 3: 0.85, 4: 0.85}
    assert alternative_annotator(items(300, people=people, model=0.9)).may_replace is True
    guessing = alternative_annotator(items(300, people=people, model=0.5))
    assert (guessing.may_replace, guessing.winning_rate) == (False, 0.0)


def test_the_advantage_is_counted_by_hand():
    # Person 1 and 3 always say 1, person 2 says -1; the model says 1. Leaving 1 out: the others say -1 and 1,
    # so both agree with one of two. Leaving 2 out: the model agrees with two, person 2 with none. 3 is as 1.
    same = [(1, {1: 1, 2: -1, 3: 1})] * 30
    result = alternative_annotator(same)
    assert result == AlternativeAnnotator(people=3, winning_rate=1.0, advantage=1.0)
    # The model says -1: leaving 1 out a tie in agreement; leaving 2 out both agree with none; leaving 3 out a
    # tie.
    assert alternative_annotator([(-1, {1: 1, 2: -1, 3: 1})] * 30).advantage == 1.0
    # Of three who agree with each other, a model that differs is never as good.
    against = alternative_annotator([(-1, {1: 1, 2: 1, 3: 1})] * 30)
    assert (against.winning_rate, against.advantage, against.may_replace) == (0.0, 0.0, False)


@pytest.mark.parametrize(("number", "people"), [(29, 3), (200, 2)])
def test_with_fewer_than_three_people_or_thirty_shared_items_nothing_is_said(number, people):
    result = alternative_annotator(items(number, people=dict.fromkeys(range(people), 0.9), model=0.9))
    assert (result.may_replace, result.winning_rate, result.advantage) == (None, None, None)


def test_what_one_person_judged_alone_counts_for_nobody():
    shared = items(40, people={1: 0.9, 2: 0.9, 3: 0.9}, model=0.9)
    alone = [(1, {1: -1})] * 100
    assert alternative_annotator([*shared, *alone]) == alternative_annotator(shared)


def test_the_p_value_is_that_of_a_paired_t_test():
    source = random.Random(4)
    pairs = [(source.random() < 0.8, source.random() < 0.85) for _ in range(50)]
    differences = [float(person) - float(model) for model, person in pairs]
    expected = ttest_1samp(differences, MARGIN, alternative="less").pvalue
    assert _p_value(pairs, MARGIN) == pytest.approx(expected)


def test_hypotheses_are_rejected_as_benjamini_and_yekutieli_do():
    # With three, bounds are 0.05 · rank / (3 · 11/6): 0.0091, 0.0182, 0.0273.
    assert _rejected([0.02, 0.001, 0.02]) == 3
    assert _rejected([0.03, 0.001, 0.019]) == 1
    assert _rejected([0.03, 0.02, 0.04]) == 0
