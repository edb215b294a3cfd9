"""Returns, advantages and baselines against sums written out, hand calculations and rewards under padding."""

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from training.rlhf import advantages

NAN = math.nan


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def gae_by_definition(rewards, values, gamma, lam) -> list[float]:
    """A_t = Σ_l (γλ)^l δ_{t+l}, the double sum of the paper."""
    values = [*values, 0.0]
    deltas = [r + gamma * values[t + 1] - values[t] for t, r in enumerate(rewards)]
    return [sum((gamma * lam) ** k * d for k, d in enumerate(deltas[t:])) for t in range(len(deltas))]


def padded(numbers, left: int, right: int, hole: int | None = None):
    """The numbers with NaN around them (and, if wished, one in their midst), and the mask that finds them."""
    cells = [NAN] * left + list(numbers) + [NAN] * right
    mask = [False] * left + [True] * len(numbers) + [False] * right
    if hole is not None:
        cells.insert(left + hole, NAN)
        mask.insert(left + hole, False)
    return rows(cells), torch.tensor([mask])


episodes = st.integers(1, 6).flatmap(
    lambda n: st.tuples(*[st.lists(st.floats(-3, 3), min_size=n, max_size=n) for _ in range(2)])
)
pads = st.tuples(st.integers(0, 3), st.integers(0, 3))


def test_discounted_returns_by_hand():
    # γ = 0.5: G_2 = 4, G_1 = 2 + 0.5·4 = 4, G_0 = 1 + 0.5·4 = 3
    returns = advantages.discounted_returns(rows([1, 2, 4]), torch.ones(1, 3), gamma=0.5)
    assert returns.tolist() == [[3, 4, 4]]


def test_returns_without_a_discount_are_the_sum_of_what_is_still_to_come():
    mask = torch.tensor([[0, 1, 1, 0, 1, 0]])
    returns = advantages.discounted_returns(rows([NAN, 1, 2, NAN, 4, NAN]), mask, gamma=1.0)
    assert returns.tolist() == [[0, 7, 6, 0, 4, 0]]


def test_gae_by_hand():
    # γ = 0.9, λ = 0.5, γλ = 0.45; V = 0.5, 0.4, 0.3; r = 0, 0, 1
    # δ_2 = 1 + 0 − 0.3           =  0.7      A_2 = 0.7
    # δ_1 = 0 + 0.9·0.3 − 0.4     = −0.13     A_1 = −0.13 + 0.45·0.7   = 0.185
    # δ_0 = 0 + 0.9·0.4 − 0.5     = −0.14     A_0 = −0.14 + 0.45·0.185 = −0.05675
    # returns A + V: 0.44325, 0.585, 1.0
    estimates, returns = advantages.gae(
        rows([0, 0, 1]), rows([0.5, 0.4, 0.3]), torch.ones(1, 3), gamma=0.9, lam=0.5
    )
    assert estimates[0].tolist() == pytest.approx([-0.05675, 0.185, 0.7])
    assert returns[0].tolist() == pytest.approx([0.44325, 0.585, 1.0])


@given(episodes, pads, st.floats(0, 1), st.floats(0, 1))
def test_gae_is_the_papers_double_sum_whatever_the_padding(episode, pad, gamma, lam):
    rewards, values = episode
    padded_rewards, mask = padded(rewards, *pad)
    padded_values, _ = padded(values, *pad)
    estimates, returns = advantages.gae(padded_rewards, padded_values, mask, gamma=gamma, lam=lam)
    expected = gae_by_definition(rewards, values, gamma, lam)
    assert estimates[mask].tolist() == pytest.approx(expected, abs=1e-9)
    assert returns[mask].tolist() == pytest.approx(
        [a + v for a, v in zip(expected, values, strict=True)], abs=1e-9
    )
    assert not estimates[~mask].any()
    assert not returns[~mask].any()


def test_gae_steps_over_another_speakers_turn():
    rewards, mask = padded([1, 2, 3], 1, 1, hole=2)
    values, _ = padded([0.1, 0.2, 0.3], 1, 1, hole=2)
    estimates, _ = advantages.gae(rewards, values, mask, gamma=0.9, lam=0.8)
    assert estimates[mask].tolist() == pytest.approx(gae_by_definition([1, 2, 3], [0.1, 0.2, 0.3], 0.9, 0.8))


def test_rows_of_different_length_do_not_touch_each_other():
    rewards, values = rows([1, 2, NAN], [NAN, NAN, 5]), rows([0.5, 0.5, NAN], [NAN, NAN, 1])
    mask = torch.tensor([[True, True, False], [False, False, True]])
    estimates, _ = advantages.gae(rewards, values, mask, gamma=1.0, lam=1.0)
    # λ = γ = 1: A_t is the sum of the rewards from t on, less V_t.
    assert estimates.tolist() == [[2.5, 1.5, 0], [0, 0, 4]]


def test_with_lambda_1_gae_is_the_discounted_return_less_the_value():
    rewards, values, mask = rows([1, -2, 0.5]), rows([0.3, 0.1, -0.4]), torch.ones(1, 3)
    estimates, returns = advantages.gae(rewards, values, mask, gamma=0.7, lam=1.0)
    expected = advantages.discounted_returns(rewards, mask, gamma=0.7)
    assert torch.allclose(returns, expected)
    assert torch.allclose(estimates, expected - values)


def test_the_returns_are_those_of_the_advantages_before_whitening():
    rewards, values, mask = rows([0, 0, 1]), rows([0.5, 0.4, 0.3]), torch.ones(1, 3)
    _, returns = advantages.gae(rewards, values, mask, gamma=1.0, lam=1.0)
    # γ = λ = 1: every return is the reward that is still to come, 1. Whitened advantages sum to 0,
    # so returns made from them would have the values' mean, 0.4.
    assert returns[0].tolist() == pytest.approx([1, 1, 1])


def test_nothing_of_an_advantage_takes_a_gradient():
    values = torch.zeros(1, 3, requires_grad=True)
    estimates, returns = advantages.gae(torch.ones(1, 3), values, torch.ones(1, 3), gamma=1.0, lam=1.0)
    assert not estimates.requires_grad
    assert not returns.requires_grad


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="must have one shape"):
        advantages.discounted_returns(torch.ones(2, 3), torch.ones(2, 2), gamma=1.0)


def test_group_relative_by_hand():
    # 1, 0, 0, 1: mean 0.5, deviations ±0.5, sample variance 4·0.25 / 3, std 0.5773503
    relative = advantages.group_relative(rows([1, 0, 0, 1]))
    assert relative[0].tolist() == pytest.approx([0.8660254, -0.8660254, -0.8660254, 0.8660254])
    assert advantages.group_relative(rows([1, 0, 0, 1]), scale=False).tolist() == [[0.5, -0.5, -0.5, 0.5]]


def test_what_could_not_be_scored_is_left_out_and_not_called_0():
    # Without the NaN: mean 2, sample std √2. As 0 it would pull the mean down to 4/3.
    relative = advantages.group_relative(rows([1, NAN, 3]))
    assert relative[0].tolist() == pytest.approx([-1 / math.sqrt(2), 0, 1 / math.sqrt(2)])
    assert advantages.leave_one_out(rows([1, NAN, 3])).tolist() == [[-2, 0, 2]]


@pytest.mark.parametrize(
    "group",
    [[0.1] * 7, [NAN, NAN], [0.4, NAN], [0.1 + 0.2, 0.3], [1e30, 1e30], [0.0, 0.0]],
    ids=["ties", "no score", "one score", "ties but for rounding", "large ties", "zeros"],
)
def test_a_group_that_teaches_nothing_gets_zeros(group):
    assert not advantages.group_relative(rows(group)).any()
    assert not advantages.leave_one_out(rows(group)).any()
    assert advantages.tied_groups(rows(group)).all()


def test_ties_in_single_precision_stay_ties():
    # The mean of seven 0.1 in float32 is not 0.1; divided by its own rounding error it would be ±1.
    group = torch.full((1, 7), 0.1)
    assert (group - group.mean()).any()
    assert not advantages.group_relative(group).any()


def test_noise_in_rewards_is_not_scaled_to_full_size():
    # Mean 0.50000025, sample deviation 5e-7: the odd one would get 1.5. Divided by 1e-4 it gets 0.0075.
    noise = [0.5, 0.500001, 0.5, 0.5]
    relative = advantages.group_relative(rows(noise))
    assert relative[0].tolist() == pytest.approx([-0.0025, 0.0075, -0.0025, -0.0025])
    assert advantages.group_relative(rows(noise), floor=0.0).max() == pytest.approx(1.5)
    in_single = advantages.group_relative(torch.tensor([noise]))
    assert in_single.abs().max() < 0.01
    assert advantages.narrow_groups(rows(noise, [0.5] * 4, [0, 1, 0, 0]), floor=1e-4).tolist() == [
        True,
        False,
        False,
    ]


def test_a_deviation_above_the_floor_is_not_changed_by_it():
    rewards = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(advantages.group_relative(rewards), advantages.group_relative(rewards, floor=0.0))


def test_a_small_difference_is_no_tie():
    relative = advantages.group_relative(rows([1.0, 1.0 + 1e-9]), floor=0.0)
    assert relative[0].tolist() == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)], rel=1e-5)


@given(st.lists(st.one_of(st.floats(-5, 5), st.just(NAN)), min_size=2, max_size=6))
def test_leave_one_out_compares_each_answer_with_the_mean_of_the_others(group):
    scored = [r for r in group if not math.isnan(r)]
    expected = []
    for index, reward in enumerate(group):
        others = [r for j, r in enumerate(group) if j != index and not math.isnan(r)]
        expected.append(0.0 if math.isnan(reward) or not others else reward - statistics.fmean(others))
    if scored and max(scored) - min(scored) < 1e-12:
        expected = [0.0] * len(group)
    differences = advantages.leave_one_out(rows(group))
    assert differences[0].tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("count", [2, 3, 8])
def test_leave_one_out_is_the_group_mean_baseline_times_k_over_k_minus_1(count):
    rewards = torch.randn(5, count, dtype=torch.float64, generator=torch.Generator().manual_seed(count))
    dr_grpo = advantages.group_relative(rewards, scale=False)
    assert torch.allclose(advantages.leave_one_out(rewards), dr_grpo * count / (count - 1))


def test_an_infinite_reward_is_refused():
    with pytest.raises(ValueError, match="must be finite"):
        advantages.group_relative(rows([1, math.inf]))


def test_rewards_without_groups_are_refused():
    with pytest.raises(ValueError, match=r"must be \(batch, K\)"):
        advantages.leave_one_out(torch.ones(4))


def test_whitening_sees_the_mask_alone():
    # Of 1, 2, 3, 6: mean 3, sample variance (4 + 1 + 0 + 9) / 3
    x = rows([NAN, 1, 2], [3, 6, 1e9])
    mask = torch.tensor([[False, True, True], [True, True, False]])
    deviation = math.sqrt(14 / 3)
    whitened = advantages.whiten(x, mask)
    assert whitened[mask].tolist() == pytest.approx([v / deviation for v in (-2, -1, 0, 3)])
    assert not whitened[~mask].any()


def test_whitening_can_keep_the_mean():
    x, mask = rows([1, 2, 3, 6, NAN]), torch.tensor([[1, 1, 1, 1, 0]])
    whitened = advantages.whiten(x, mask, shift_mean=False)
    assert whitened[0, :4].mean().item() == pytest.approx(3)
    assert statistics.stdev(whitened[0, :4].tolist()) == pytest.approx(1)
    assert whitened[0, 4] == 0


@pytest.mark.parametrize("x", [[2.0], [2.0, 2.0]])
def test_whitening_what_does_not_vary_gives_zeros(x):
    assert not advantages.whiten(rows(x), torch.ones(1, len(x))).any()


def test_whitening_an_empty_mask_gives_zeros():
    assert not advantages.whiten(rows([NAN, 1]), torch.zeros(1, 2)).any()


def test_the_running_mean_is_that_of_earlier_batches_only():
    baseline = advantages.RunningMeanBaseline()
    assert baseline.advantages(torch.tensor([1.0, 3.0])).tolist() == [1, 3]
    # Earlier mean 2; then (1 + 3 + 8) / 3 = 4.
    assert baseline.advantages(torch.tensor([8.0, NAN])).tolist() == [6, 0]
    assert baseline.advantages(torch.tensor([[4.0], [5.0]])).tolist() == [[0], [1]]


def test_a_running_mean_that_forgets():
    baseline = advantages.RunningMeanBaseline(decay=0.75)
    baseline.advantages(torch.tensor([2.0, 2.0]))
    # 0.75 · 2 + 0.25 · 10 = 4
    baseline.advantages(torch.tensor([10.0]))
    assert baseline.advantages(torch.tensor([4.0])).tolist() == [0]


def test_a_batch_without_a_score_leaves_the_running_mean_alone():
    baseline = advantages.RunningMeanBaseline(decay=0.5)
    baseline.advantages(torch.tensor([2.0]))
    before = baseline.state_dict()
    assert baseline.advantages(torch.tensor([NAN])).tolist() == [0]
    assert baseline.state_dict() == before


@pytest.mark.parametrize("decay", [None, 0.9])
def test_a_running_mean_goes_on_where_its_state_was_taken(decay):
    torch.manual_seed(0)
    batches = [torch.randn(5) for _ in range(6)]
    whole = advantages.RunningMeanBaseline(decay=decay)
    expected = [whole.advantages(batch) for batch in batches]
    first = advantages.RunningMeanBaseline(decay=decay)
    continued = [first.advantages(batch) for batch in batches[:3]]
    second = advantages.RunningMeanBaseline(decay=decay)
    second.load_state_dict(first.state_dict())
    continued += [second.advantages(batch) for batch in batches[3:]]
    assert torch.equal(torch.stack(continued), torch.stack(expected))


def test_a_decay_outside_its_bounds_is_refused():
    with pytest.raises(ValueError, match="must lie between 0 and 1"):
        advantages.RunningMeanBaseline(decay=1.0)
