"""Figures of a binary head against hand calculation and enumeration of all thresholds."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from training.rlhf.measures.calibration import (
    average_precision,
    cohen_kappa,
    f1_at,
    precision_recall_curve,
)

# Few distinct scores, so that many are equal.
examples = st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 1)), min_size=1, max_size=15).map(
    lambda pairs: tuple(map(list, zip(*pairs, strict=True)))
)


def counted(scores, labels, threshold) -> tuple[int, int, int]:
    """True positives, false positives, false negatives, one example at a time."""
    pairs = list(zip(scores, labels, strict=True))
    return (
        sum(score >= threshold and label == 1 for score, label in pairs),
        sum(score >= threshold and label == 0 for score, label in pairs),
        sum(score < threshold and label == 1 for score, label in pairs),
    )


def test_the_curve_of_four_examples_with_a_tie_by_hand() -> None:
    # From .9 up: one marked, right. From .5: three, two right. From .1: four, two right.
    curve = precision_recall_curve([0.9, 0.5, 0.5, 0.1], [1, 1, 0, 0])
    assert curve.thresholds.tolist() == [0.1, 0.5, 0.9]
    assert curve.precision.tolist() == pytest.approx([2 / 4, 2 / 3, 1])
    assert curve.recall.tolist() == [1, 1, 0.5]
    # From the top: ½ · 1 + ½ · 2/3.
    assert average_precision([0.9, 0.5, 0.5, 0.1], [1, 1, 0, 0]) == pytest.approx(5 / 6)


@given(examples)
def test_every_point_of_the_curve_is_what_counting_gives(case) -> None:
    scores, labels = case
    assume(any(labels))
    curve = precision_recall_curve(scores, labels)
    assert curve.thresholds.tolist() == sorted(set(scores))
    area, before = 0.0, 0.0
    for index in reversed(range(len(curve.thresholds))):
        hits, false, missed = counted(scores, labels, curve.thresholds[index])
        assert curve.precision[index] == pytest.approx(hits / (hits + false))
        assert curve.recall[index] == pytest.approx(hits / (hits + missed))
        area += (hits / (hits + missed) - before) * hits / (hits + false)
        before = hits / (hits + missed)
    assert average_precision(scores, labels) == pytest.approx(area)


@given(examples, st.integers(-4, 4))
def test_f1_is_what_counting_gives(case, threshold) -> None:
    scores, labels = case
    hits, false, missed = counted(scores, labels, threshold)
    expected = 2 * hits / (2 * hits + false + missed) if hits + false + missed else 0
    assert f1_at(scores, labels, threshold) == pytest.approx(expected)


def test_scores_that_say_nothing_reach_the_share_of_errors() -> None:
    assert average_precision([0, 0, 0, 0], [1, 0, 0, 0]) == 0.25


@pytest.mark.parametrize("figure", [precision_recall_curve, average_precision])
def test_a_category_without_examples_is_refused(figure) -> None:
    with pytest.raises(ValueError, match="no label is 1: a category without examples"):
        figure([1, 2], [0, 0])


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ([1, 2], [0, 2], "labels must be 0 or 1"),
        ([1, 2], [0], "one length, not scores 2, labels 1"),
        ([math.nan], [1], r"scores\[0\] is nan"),
        ([], [], "scores is empty"),
    ],
)
def test_examples_that_cannot_be_scored_are_refused(scores, labels, message) -> None:
    for figure in (average_precision, precision_recall_curve):
        with pytest.raises(ValueError, match=message):
            figure(scores, labels)


def test_cohens_kappa_by_hand() -> None:
    # Both say yes of 20 and no of 15 of 50; one alone says yes of 5, the other alone of 10. p_o = 0.7,
    # p_e = 0.5 · 0.6 + 0.5 · 0.4 = 0.5: κ = 0.4.
    first = ["yes"] * 25 + ["no"] * 25
    second = ["yes"] * 20 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 15
    assert cohen_kappa(first, second) == pytest.approx(0.4)


def test_kappa_is_1_for_the_same_below_0_for_the_opposite_and_none_for_one_category() -> None:
    assert cohen_kappa([0, 1, 1], [0, 1, 1]) == 1
    assert cohen_kappa([0, 1], [1, 0]) == -1
    assert cohen_kappa([1, 1], [1, 1]) is None
    # p_o = p_e = ½: one of them never says 0.
    assert cohen_kappa(torch.tensor([1, 1]), torch.tensor([True, False])) == 0


@pytest.mark.parametrize(("first", "second", "message"), [([1], [1, 0], "1 judgments"), ([], [], "nothing")])
def test_kappa_refuses_judgments_that_are_not_of_the_same_examples(first, second, message) -> None:
    with pytest.raises(ValueError, match=message):
        cohen_kappa(first, second)
