"""Temperature, reliability, length bias and clustered intervals against hand calculation and brute force."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from annotation.agreement.intervals import wilson_interval
from training.rlhf.measures.calibration import (
    cluster_bootstrap,
    expected_calibration_error,
    favourite_outcomes,
    fit_temperature,
    length_bias,
    pair_probabilities,
    reliability_diagram,
)

margin_lists = st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=1, max_size=12)


def mean_loss(margins, weights, temperature: float) -> float:
    terms = [w * np.logaddexp(0, -m / temperature) for m, w in zip(margins, weights, strict=True)]
    return float(sum(terms) / sum(weights))


def test_the_temperature_of_three_right_and_one_wrong_pair_by_hand() -> None:
    # Margins 2, 2, 2, −2: σ(2 / τ) must be 3/4, so 2 / τ = ln 3.
    assert fit_temperature([2, 2, 2, -2]) == pytest.approx(2 / math.log(3), rel=1e-12)


def test_a_weight_of_three_is_the_pair_three_times_and_a_weight_of_nothing_no_pair() -> None:
    assert fit_temperature([2, -2, -9], [3, 1, 0]) == pytest.approx(2 / math.log(3), rel=1e-12)


def test_scores_of_a_model_that_are_ten_times_too_large_are_cooled_ten_times_as_much() -> None:
    margins = torch.tensor([3.0, 1.0, -0.5, 2.0, -1.0])
    assert fit_temperature(10 * margins) == pytest.approx(10 * fit_temperature(margins), rel=1e-9)
    assert fit_temperature(1e-200 * margins.double()) == pytest.approx(1e-200 * fit_temperature(margins))


@given(margin_lists, st.data())
def test_no_other_temperature_has_a_lower_loss(margins, data) -> None:
    weights = data.draw(st.lists(st.integers(1, 4), min_size=len(margins), max_size=len(margins)))
    temperature = fit_temperature(margins, weights)
    assume(0 < temperature < math.inf)
    least = mean_loss(margins, weights, temperature)
    for factor in (0.2, 0.9, 0.99, 1.01, 1.1, 5):
        assert least <= mean_loss(margins, weights, temperature * factor) + 1e-12


def test_where_no_pair_is_wrong_the_loss_falls_as_the_temperature_goes_to_nothing() -> None:
    assert fit_temperature([1, 2, 0]) == 0
    assert fit_temperature([1, -2], [1, 0]) == 0


def test_where_the_mean_margin_is_not_above_0_every_pair_is_better_called_a_coin() -> None:
    assert fit_temperature([1, -1]) == math.inf
    assert fit_temperature([-1, -2]) == math.inf


def test_without_any_margin_the_temperature_is_1() -> None:
    assert fit_temperature([0, 0]) == 1


@pytest.mark.parametrize(
    ("margins", "weight", "message"),
    [
        ([], None, "margins is empty"),
        ([1, math.nan], None, r"margins\[1\] is nan"),
        ([1, math.inf], None, r"margins\[1\] is inf"),
        ([1, 2], [1], "one length, not margins 2, weight 1"),
        ([1, 2], [1, -1], "must not be negative"),
        ([1, 2], [0, 0], "some weight must be above 0"),
        (torch.zeros(2, 2), [0, 0], "one dimension"),
    ],
)
def test_margins_that_have_no_temperature_are_refused(margins, weight, message) -> None:
    with pytest.raises(ValueError, match=message):
        fit_temperature(margins, weight)


def test_probabilities_take_the_limits_of_the_temperature() -> None:
    assert pair_probabilities([2, 0, -2], 2).tolist() == pytest.approx([0.7310586, 0.5, 0.2689414])
    assert pair_probabilities([2, 0, -2], 0).tolist() == [1, 0.5, 0]
    assert pair_probabilities([2, 0, -2], math.inf).tolist() == [0.5] * 3
    assert pair_probabilities([-4000, 4000]).tolist() == [0, 1]
    with pytest.raises(ValueError, match="must not be negative"):
        pair_probabilities([1], -1)


def test_a_pair_is_seen_from_the_models_favourite() -> None:
    probabilities, outcomes = favourite_outcomes(torch.tensor([2.0, -2.0, 0.0], dtype=torch.bfloat16))
    assert probabilities.tolist() == pytest.approx([0.8807971, 0.8807971, 0.5])
    assert outcomes.tolist() == [1, 0, 0.5]


def test_a_reliability_diagram_by_hand() -> None:
    # Two bins: .1 and .3 of which one happened; .5 (its lower edge), .8 and 1.0, of which two did.
    low, high = reliability_diagram([0.1, 0.3, 0.5, 0.8, 1.0], [0, 1, 0, 1, 1], bins=2)
    assert (low.low, low.high, low.count, low.observed) == (0, 0.5, 2, 0.5)
    assert low.mean_probability == pytest.approx(0.2)
    assert (high.low, high.high, high.count) == (0.5, 1, 3)
    assert high.mean_probability == pytest.approx(2.3 / 3)
    assert high.observed == pytest.approx(2 / 3)
    assert (high.observed_low, high.observed_high) == pytest.approx(wilson_interval(2, 3))
    # 2/5 · |.5 − .2| + 3/5 · |2/3 − 2.3/3| = 0.12 + 0.06
    error = expected_calibration_error([0.1, 0.3, 0.5, 0.8, 1.0], [0, 1, 0, 1, 1], bins=2)
    assert error == pytest.approx(0.18)


def test_empty_bins_are_left_out_and_edges_belong_to_the_bin_above() -> None:
    diagram = reliability_diagram([0.0, 0.29, 0.3, 1.0], [0, 0, 1, 1], bins=100)
    assert [(bucket.low, bucket.count) for bucket in diagram] == [(0, 1), (0.29, 1), (0.3, 1), (0.99, 1)]


def test_predictions_that_come_true_as_often_as_they_say_have_no_calibration_error() -> None:
    probabilities, outcomes = [0.25] * 4 + [0.75] * 4, [1, 0, 0, 0, 1, 1, 1, 0]
    assert expected_calibration_error(probabilities, outcomes) == 0


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=40), st.integers(1, 12))
def test_a_diagram_counts_every_prediction_once(predictions, bins) -> None:
    probabilities, outcomes = [p / 20 for p, _ in predictions], [happened for _, happened in predictions]
    diagram = reliability_diagram(probabilities, np.array(outcomes), bins)
    assert sum(entry.count for entry in diagram) == len(predictions)
    assert sum(entry.count * entry.observed for entry in diagram) == pytest.approx(sum(outcomes))
    assert sum(entry.count * entry.mean_probability for entry in diagram) == pytest.approx(sum(probabilities))
    for bucket in diagram:
        inside = [p for p in probabilities if bucket.low <= p < bucket.high or p == bucket.high == 1]
        assert len(inside) == bucket.count


@pytest.mark.parametrize(
    ("probabilities", "outcomes", "bins", "message"),
    [
        ([1.2], [1], 10, r"probabilities must lie in \[0, 1\]"),
        ([0.2], [2], 10, r"outcomes must lie in \[0, 1\]"),
        ([0.2], [1], 0, "bins 0"),
        ([], [], 10, "probabilities is empty"),
    ],
)
def test_predictions_that_are_none_are_refused(probabilities, outcomes, bins, message) -> None:
    with pytest.raises(ValueError, match=message):
        reliability_diagram(probabilities, outcomes, bins)


def test_length_bias_by_hand() -> None:
    # The longer is scored higher in the 1st, the 3rd and half of the 4th; people chose it in the 1st and 4th.
    bias = length_bias([1, 2, -1, 0, 5], [10, -5, -3, 4, 0])
    assert (bias.pairs, bias.equal_length) == (4, 1)
    assert bias.longer_scored_higher == 2.5 / 4
    assert bias.longer_chosen == 2 / 4
    # Σ m·sign(d) = 1 − 2 + 1 + 0 = 0.
    assert bias.point_biserial == 0


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=2, max_size=20))
def test_length_correlations_are_scipys_over_both_orders_of_every_pair(pairs) -> None:
    unequal = [(m, d) for m, d in pairs if d]
    assume(any(m for m, _ in unequal))
    both = np.array(unequal + [(-m, -d) for m, d in unequal], dtype=float)
    bias = length_bias([m for m, _ in pairs], [d for _, d in pairs])
    expected = stats.pointbiserialr(both[:, 1] > 0, both[:, 0]).statistic
    assert bias.point_biserial == pytest.approx(expected, abs=1e-9)
    assert bias.spearman == pytest.approx(stats.spearmanr(both[:, 0], both[:, 1]).statistic, abs=1e-9)


def test_a_model_that_scores_by_length_alone_is_found_out() -> None:
    lengths = [3, -8, 1, 20]
    bias = length_bias([length**3 for length in lengths], lengths)
    assert bias.longer_scored_higher == 1
    assert bias.spearman == 1


def test_figures_of_length_that_do_not_exist_are_none() -> None:
    nothing = length_bias([1, 2], [0, 0])
    assert (nothing.pairs, nothing.equal_length, nothing.longer_chosen, nothing.spearman) == (
        0,
        2,
        None,
        None,
    )
    unscored = length_bias([0, 0], [1, -1])
    assert (unscored.longer_scored_higher, unscored.point_biserial, unscored.spearman) == (0.5, None, None)


def test_the_clustered_mean_is_that_of_the_values_and_comes_back_by_its_seed() -> None:
    values, clusters = [1, 0, 1, 1, 0, 1], ["a", "a", "b", "c", "c", "d"]
    interval = cluster_bootstrap(values, clusters, seed=3)
    assert interval.mean == pytest.approx(4 / 6)
    assert interval.clusters == 4
    assert interval == cluster_bootstrap(values, clusters, seed=3)
    assert interval.low < interval.mean < interval.high


def test_the_interval_of_two_clusters_is_that_of_their_four_resamples() -> None:
    # aa: 0, ab and ba: 3/4 (one value of a, three of b), bb: 1; a quarter, a half and a quarter of all.
    interval = cluster_bootstrap([0, 1, 1, 1], ["a", "b", "b", "b"])
    assert (interval.mean, interval.low, interval.high) == (0.75, 0, 1)


def test_copies_of_a_value_within_its_cluster_do_not_narrow_the_interval() -> None:
    outcomes = [1, 0, 1, 1, 0, 1, 0, 1]
    alone = cluster_bootstrap(outcomes, range(8))
    copied = cluster_bootstrap(np.repeat(outcomes, 50), np.repeat(range(8), 50).tolist())
    assert (copied.low, copied.high) == pytest.approx((alone.low, alone.high))
    weighted = cluster_bootstrap(outcomes, range(8), weight=[50.0] * 8)
    assert (weighted.low, weighted.high) == pytest.approx((alone.low, alone.high))


def test_with_one_value_a_cluster_the_interval_is_about_the_normal_one() -> None:
    values = np.random.default_rng(7).normal(size=400)
    half = 1.96 * values.std() / 20
    interval = cluster_bootstrap(values, range(400))
    assert interval.low == pytest.approx(values.mean() - half, abs=0.02)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.02)


def test_one_cluster_has_no_interval_and_one_without_weight_is_none() -> None:
    interval = cluster_bootstrap([1, 2], ["a", "a"])
    assert (interval.mean, interval.low, interval.high, interval.clusters) == (1.5, None, None, 1)
    assert cluster_bootstrap([1, 2], ["a", "b"], weight=[1, 0]).clusters == 1


def test_values_without_a_cluster_are_refused() -> None:
    with pytest.raises(ValueError, match="2 values have 1 clusters"):
        cluster_bootstrap([1, 2], ["a"])
    with pytest.raises(ValueError, match="must not be negative"):
        cluster_bootstrap([1, 2], ["a", "b"], weight=[-1, 2])
