"""The distribution from which the next token is drawn, and the draw."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from training.rlhf.rollout.distribution import (
    DeviceNoise,
    Noise,
    _uniform,
    draw,
    make_noise,
    sampling_log_probs,
)
from training.rlhf.sampling import SamplingParameters

FOUR = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()


def probabilities(logits: torch.Tensor, **choices: float) -> list[float]:
    """The distribution of the first row, as numbers."""
    return sampling_log_probs(logits, SamplingParameters(**choices)).exp()[0].tolist()  # type: ignore[arg-type]


def test_the_temperature_divides_the_logits():
    # softmax(2/0.5, 1/0.5, 0/0.5) = e^4, e^2, 1 over their sum 62.987...
    total = math.e**4 + math.e**2 + 1
    expected = [math.e**4 / total, math.e**2 / total, 1 / total]
    assert probabilities(torch.tensor([[2.0, 1.0, 0.0]]), temperature=0.5) == pytest.approx(expected)


def test_temperature_zero_leaves_only_the_likeliest_token():
    assert probabilities(torch.tensor([[1.0, 3.0, 3.0, 0.0]]), temperature=0.0) == [0, 1, 0, 0]


def test_top_k_keeps_the_k_likeliest_and_renormalises():
    # 0.4 and 0.3 of 0.7.
    assert probabilities(FOUR, top_k=2) == pytest.approx([4 / 7, 3 / 7, 0, 0])


def test_top_k_keeps_k_tokens_even_among_equals():
    assert sorted(probabilities(torch.zeros(1, 4), top_k=3)) == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])


def test_top_k_zero_and_top_k_beyond_the_vocabulary_are_off():
    assert probabilities(FOUR, top_k=0) == pytest.approx([0.4, 0.3, 0.2, 0.1])
    assert probabilities(FOUR, top_k=50) == pytest.approx([0.4, 0.3, 0.2, 0.1])


def test_top_p_keeps_the_token_that_crosses_the_line():
    # 0.4 falls short of 0.6; 0.4 + 0.3 reaches it.
    assert probabilities(FOUR, top_p=0.6) == pytest.approx([4 / 7, 3 / 7, 0, 0])


def test_a_tiny_top_p_leaves_the_likeliest_token():
    assert probabilities(FOUR, top_p=1e-6) == pytest.approx([1, 0, 0, 0])


def test_top_k_comes_before_top_p():
    # After top-k 2 the likeliest has 4/7 > 0.5 and is enough. Were top-p first, two tokens would stay.
    assert probabilities(FOUR, top_k=2, top_p=0.5) == pytest.approx([1, 0, 0, 0])


def test_top_p_counts_a_flat_distribution_to_its_end():
    # 3,000 equal tokens: 0.9 of them is 2,700, more than are looked at first.
    probs = sampling_log_probs(torch.zeros(1, 3000), SamplingParameters(top_p=0.9)).exp()
    assert int((probs > 0).sum()) == pytest.approx(2700, abs=1)
    assert float(probs.sum()) == pytest.approx(1, abs=1e-4)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    temperature=st.floats(0.1, 2),
    top_k=st.integers(1, 60),
    top_p=st.floats(0.05, 0.99),
)
def test_the_filters_are_those_of_transformers(seed: int, temperature: float, top_k: int, top_p: float):
    logits = 3 * torch.randn(3, 50, generator=torch.Generator().manual_seed(seed))
    oracle = LogitsProcessorList(
        [TemperatureLogitsWarper(temperature), TopKLogitsWarper(top_k), TopPLogitsWarper(top_p)]
    )
    expected = torch.softmax(oracle(torch.zeros(3, 1, dtype=torch.long), logits), -1)
    parameters = SamplingParameters(temperature=temperature, top_k=top_k, top_p=top_p)
    torch.testing.assert_close(sampling_log_probs(logits, parameters).exp(), expected, rtol=1e-4, atol=1e-6)


def test_tokens_are_drawn_as_often_as_their_probability_says():
    count = 20_000
    generator = torch.Generator().manual_seed(7)
    drawn = draw(FOUR.expand(count, 4), [generator] * count)
    frequencies = torch.bincount(drawn, minlength=4) / count
    for frequency, probability in zip(frequencies.tolist(), [0.4, 0.3, 0.2, 0.1], strict=True):
        # Four standard deviations of a binomial share.
        assert abs(frequency - probability) < 4 * math.sqrt(probability * (1 - probability) / count)


def of_a_cpu(seed: int) -> Noise:
    return make_noise(seed, torch.device("cpu"))


@pytest.mark.parametrize("noise", [of_a_cpu, DeviceNoise])
@pytest.mark.parametrize("size", [128, 300, 512])
def test_tokens_of_every_block_of_the_vocabulary_are_drawn_as_often_as_their_probability_says(
    size: int, noise: Callable[[int], Noise]
):
    count = 60_000
    log_probs = torch.log_softmax(2 * torch.randn(1, size, generator=torch.Generator().manual_seed(size)), -1)
    generator = noise(8)
    drawn = torch.cat([draw(log_probs.expand(6000, size), [generator] * 6000) for _ in range(10)])
    expected = log_probs[0].double().exp() * count
    observed = torch.bincount(drawn, minlength=size).double()
    # Pearson's test over the tokens expected at least five times, and one cell for all others.
    often = expected >= 5
    expected = torch.cat([expected[often], expected[~often].sum()[None].clamp(min=1e-9)])
    observed = torch.cat([observed[often], observed[~often].sum()[None]])
    statistic = float(((observed - expected) ** 2 / expected.clamp(min=1)).sum())
    assert chi2.sf(statistic, len(expected) - 1) > 1e-4


def test_a_token_of_probability_zero_is_never_drawn():
    log_probs = torch.tensor([[0.5, 0.0, 0.5]]).log().expand(2000, 3)
    drawn = draw(log_probs, [torch.Generator().manual_seed(seed) for seed in range(2000)])
    assert set(drawn.tolist()) == {0, 2}


def test_what_a_row_draws_depends_on_no_other_row():
    log_probs = torch.log_softmax(torch.randn(5, 100, generator=torch.Generator().manual_seed(0)), -1)
    together = draw(log_probs, [torch.Generator().manual_seed(seed) for seed in range(5)])
    alone = [draw(log_probs[row : row + 1], [torch.Generator().manual_seed(row)]).item() for row in range(5)]
    assert together.tolist() == alone


def test_noise_of_a_device_depends_on_the_seed_and_the_draws_before_alone():
    log_probs = torch.log_softmax(torch.randn(5, 100, generator=torch.Generator().manual_seed(0)), -1)
    rows = [DeviceNoise(seed) for seed in range(5)]
    together = torch.stack([draw(log_probs, rows) for _ in range(20)], 1)
    for row in range(5):
        source = DeviceNoise(row)
        alone = [draw(log_probs[row : row + 1], [source]).item() for _ in range(20)]
        assert together[row].tolist() == alone
    assert len({tuple(row) for row in together.tolist()}) == 5


def test_noise_of_a_device_is_splitmix64():
    # SplitMix64 from the state 0 gives E220A8397B1DCDAF first and 6E789E6AA1B965F4 next (Vigna's program).
    noise = _uniform(torch.tensor([0]), 2)
    assert noise.tolist() == [[(0xE220A8397B1DCDAF >> 11) / 2**53, (0x6E789E6AA1B965F4 >> 11) / 2**53]]


def test_rounding_errors_do_not_change_what_is_drawn():
    generator = torch.Generator().manual_seed(3)
    log_probs = torch.log_softmax(torch.randn(200, 49152, generator=generator), -1)
    shaken = log_probs + 1e-6 * torch.randn(log_probs.shape, generator=generator)
    exact = draw(log_probs, [torch.Generator().manual_seed(seed) for seed in range(200)])
    disturbed = draw(shaken, [torch.Generator().manual_seed(seed) for seed in range(200)])
    assert torch.equal(exact, disturbed)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("max_tokens", 0),
        ("stop", ("",)),
        ("seed", -1),
        ("alternatives", 21),
    ],
)
def test_a_parameter_out_of_bounds_is_refused_by_name(field: str, value: object):
    with pytest.raises(ValueError, match=field):
        SamplingParameters(**{field: value})  # type: ignore[arg-type]
