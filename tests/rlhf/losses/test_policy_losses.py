"""Policy and value losses by hand, against finite differences, and on a policy whose optimum is known."""

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from training.rlhf import advantages, kl, losses
from training.rlhf import losses as policy_losses

NAN = math.nan
FREE = math.inf


def rows(*values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def drawn(seed: int = 0, shape: tuple[int, int] = (3, 5)):
    """Random log-probabilities, old ones near them, advantages and a mask with padding on both sides."""
    random = torch.Generator().manual_seed(seed)
    logp = -torch.rand(shape, generator=random, dtype=torch.float64) - 0.1
    old = logp + 0.3 * torch.randn(shape, generator=random, dtype=torch.float64)
    token_advantages = torch.randn(shape, generator=random, dtype=torch.float64)
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 1, 0, 0]])[: shape[0], : shape[1]].bool()
    return logp, old, token_advantages, mask


def by_definition(logp: float, old: float, advantage: float, low: float, high: float) -> float:
    """One token of equation 7 of Schulman et al. 2017, in plain arithmetic."""
    ratio = math.exp(logp - old)
    return -min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)


def test_the_losses_stand_under_their_public_names():
    assert losses.policy_gradient is policy_losses.policy_gradient
    assert losses.value is policy_losses.value


def test_the_four_cases_of_the_clip_by_hand():
    # ratios 1.5 and 0.5, clipped to [0.8, 1.3]
    # A = +2, 1.5: −min(3.0, 2.6) = −2.6     A = −2, 1.5: −min(−3.0, −2.6) = 3.0
    # A = +2, 0.5: −min(1.0, 1.6) = −1.0     A = −2, 0.5: −min(−1.0, −1.6) = 1.6
    logp = rows([1.5, 1.5, 0.5, 0.5]).log()
    costs, figures = losses.policy_gradient(
        logp,
        torch.zeros_like(logp),
        rows([2, -2, 2, -2]),
        torch.ones(1, 4),
        clip_low=0.2,
        clip_high=0.3,
        reduction="none",
    )
    assert costs[0].tolist() == pytest.approx([-2.6, 3.0, -1.0, 1.6])
    assert figures["clip_fraction"].item() == 0.5
    assert figures["clip_fraction_low"].item() == 0.25
    assert figures["ratio_mean"].item() == pytest.approx(1.0)
    assert figures["ratio_min"].item() == pytest.approx(0.5)
    assert figures["ratio_max"].item() == pytest.approx(1.5)


def test_a_clipped_token_takes_no_gradient_and_a_free_one_does():
    logp = rows([1.5, 1.5, 0.5, 0.5]).log().requires_grad_()
    loss, _ = losses.policy_gradient(
        logp, torch.zeros(1, 4), rows([2, -2, 2, -2]), torch.ones(1, 4), clip_low=0.2, clip_high=0.3
    )
    loss.backward()
    # −ρ A / 4 where the clip does not bind
    assert logp.grad[0].tolist() == pytest.approx([0, 0.75, -0.25, 0])


def test_the_ratio_is_exactly_1_in_the_first_inner_epoch():
    logp, _, token_advantages, mask = drawn()
    logp = logp.float().requires_grad_()
    loss, figures = losses.policy_gradient(
        logp, logp.detach(), token_advantages, mask, clip_low=0.2, clip_high=0.2
    )
    assert [figures[f"ratio_{name}"].item() for name in ("mean", "min", "max")] == [1, 1, 1]
    assert figures["clip_fraction"].item() == 0
    assert figures["approximate_kl"].item() == 0
    # ... so the loss is minus the mean advantage, and its gradient that of REINFORCE.
    assert loss.item() == pytest.approx(-token_advantages[mask].mean().item())
    loss.backward()
    assert torch.allclose(logp.grad, torch.where(mask, -token_advantages / mask.sum(), 0.0).float())


@pytest.mark.parametrize("aggregate", ["token", "sequence", "constant"])
def test_aggregation_by_hand(aggregate):
    logp, old, token_advantages, mask = drawn()
    constant = 10.0 if aggregate == "constant" else None
    loss, _ = losses.policy_gradient(
        logp, old, token_advantages, mask, clip_low=0.1, clip_high=0.2, aggregate=aggregate, constant=constant
    )
    answers = [
        [
            by_definition(logp[row, t].item(), old[row, t].item(), token_advantages[row, t].item(), 0.1, 0.2)
            for t in range(5)
            if mask[row, t]
        ]
        for row in range(3)
    ]
    expected = {
        "token": sum(map(sum, answers)) / 9,
        "sequence": sum(sum(answer) / len(answer) for answer in answers) / 3,
        "constant": sum(sum(answer) / 10 for answer in answers) / 3,
    }
    assert loss.item() == pytest.approx(expected[aggregate])


@pytest.mark.parametrize("aggregate", ["token", "sequence", "constant"])
def test_what_lies_outside_the_mask_reaches_neither_loss_nor_gradient(aggregate):
    logp, old, token_advantages, mask = drawn()
    constant = 7.0 if aggregate == "constant" else None
    spoiled = [torch.where(mask, x, NAN).requires_grad_() for x in (logp, old, token_advantages)]
    clean = [x.clone().requires_grad_() for x in (logp, old, token_advantages)]
    results = []
    for arguments in (spoiled, clean):
        now, before, gain = arguments
        loss, figures = losses.policy_gradient(
            now, before, gain, mask, clip_low=0.2, clip_high=0.2, aggregate=aggregate, constant=constant
        )
        loss.backward()
        results.append((loss.item(), {k: v.item() for k, v in figures.items()}, arguments[0].grad.tolist()))
    assert results[0] == results[1]
    assert not torch.tensor(results[0][2])[~mask].any()
    # Neither the old policy nor the advantages learn.
    assert clean[1].grad is None
    assert clean[2].grad is None


@pytest.mark.parametrize("aggregate", ["token", "sequence", "constant"])
def test_micro_batches_add_up_to_the_loss_of_their_window(aggregate):
    logp, old, token_advantages, mask = drawn()
    options: dict[str, Any] = {"clip_low": 0.2, "clip_high": 0.2, "aggregate": aggregate}
    if aggregate == "constant":
        options["constant"] = 7.0
    whole, _ = losses.policy_gradient(logp, old, token_advantages, mask, **options)
    # The window holds 9 tokens and 3 answers.
    window = 9 if aggregate == "token" else 3
    parts = [
        losses.policy_gradient(logp[i], old[i], token_advantages[i], mask[i], window=window, **options)[0]
        for i in (slice(0, 1), slice(1, 3))
    ]
    assert sum(parts).item() == pytest.approx(whole.item())
    first, second = (
        losses.value(logp[i], old[i], token_advantages[i], mask[i], clip=0.2, window=9)
        for i in (slice(0, 1), slice(1, 3))
    )
    assert (first + second).item() == pytest.approx(
        losses.value(logp, old, token_advantages, mask, clip=0.2).item()
    )


def test_an_answer_has_one_advantage_for_all_its_tokens():
    logp, old, _, mask = drawn()
    one_each = rows([1, -2, 0.5])[0]
    options: dict[str, Any] = {"clip_low": 0.2, "clip_high": 0.2}
    per_answer, _ = losses.policy_gradient(logp, old, one_each, mask, **options)
    repeated, _ = losses.policy_gradient(logp, old, one_each[:, None].repeat(1, 5), mask, **options)
    column, _ = losses.policy_gradient(logp, old, one_each[:, None], mask, **options)
    assert per_answer.item() == repeated.item() == column.item()


def test_an_answer_without_tokens_does_not_count_as_one():
    logp, mask = rows([-1, -1], [-1, -1]), torch.tensor([[1, 1], [0, 0]])
    loss, _ = losses.policy_gradient(
        logp, logp, rows([3, 3], [9, 9]), mask, clip_low=0.2, clip_high=0.2, aggregate="sequence"
    )
    assert loss.item() == -3


def test_a_batch_without_tokens_gives_0_and_no_nan():
    logp = torch.zeros(2, 3, requires_grad=True)
    loss, figures = losses.policy_gradient(
        logp, torch.zeros(2, 3), torch.ones(2), torch.zeros(2, 3), clip_low=0.2, clip_high=0.2
    )
    loss.backward()
    assert loss.item() == 0
    assert not logp.grad.any()
    assert all(value.isfinite() for value in figures.values())


def test_a_ratio_beyond_all_bounds_meets_an_advantage_of_0_without_nan():
    logp = torch.tensor([[0.0, 0.0]], requires_grad=True)
    loss, _ = losses.policy_gradient(
        logp,
        torch.tensor([[-500.0, -500.0]]),
        torch.tensor([[0.0, 1.0]]),
        torch.ones(1, 2),
        clip_low=0.2,
        clip_high=0.2,
    )
    loss.backward()
    assert loss.item() == pytest.approx(-0.6)
    assert logp.grad.isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aggregate": "constant"}, "constant goes with"),
        ({"aggregate": "token", "constant": 3.0}, "constant goes with"),
        ({"aggregate": "constant", "constant": 0.0}, "must be positive"),
        ({"aggregate": "words"}, "token, sequence, constant"),
        ({"clip_low": -0.1}, "at least 0"),
        ({"reduction": "sum"}, "'mean' or 'none'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    logp, old, token_advantages, mask = drawn()
    with pytest.raises(ValueError, match=message):
        losses.policy_gradient(
            logp, old, token_advantages, mask, **{"clip_low": 0.2, "clip_high": 0.2, **options}
        )


@pytest.mark.parametrize("aggregate", ["token", "sequence", "constant"])
def test_the_gradient_agrees_with_finite_differences(aggregate):
    logp, old, token_advantages, mask = drawn(seed=3)
    constant = 4.0 if aggregate == "constant" else None

    def loss(x: Tensor) -> Tensor:
        return losses.policy_gradient(
            x,
            old,
            token_advantages,
            mask,
            clip_low=0.2,
            clip_high=0.4,
            aggregate=aggregate,
            constant=constant,
        )[0]

    assert torch.autograd.gradcheck(loss, logp.requires_grad_())


def test_the_value_loss_by_hand():
    # clip 0.2; V, V_old, R:
    # 1.0, 0.5, 2.0: V_clip 0.7: max(1.0, 1.69) / 2 = 0.845
    # 1.0, 0.5, 0.0: V_clip 0.7: max(1.0, 0.49) / 2 = 0.5
    # 0.6, 0.5, 1.0: V_clip 0.6: 0.16 / 2 = 0.08
    arguments = rows([1, 1, 0.6, NAN]), rows([0.5, 0.5, 0.5, NAN]), rows([2, 0, 1, NAN])
    mask = torch.tensor([[1, 1, 1, 0]])
    costs = losses.value(*arguments, mask, clip=0.2, reduction="none")
    assert costs[0].tolist() == pytest.approx([0.845, 0.5, 0.08, 0])
    assert losses.value(*arguments, mask, clip=0.2).item() == pytest.approx(1.425 / 3)
    # Without the clip: (1 + 1 + 0.16) / 2 / 3
    assert losses.value(*arguments, mask, clip=None).item() == pytest.approx(0.36)


def test_the_value_loss_agrees_with_finite_differences():
    values, old, returns, mask = drawn(seed=5)
    assert torch.autograd.gradcheck(
        lambda x: losses.value(x, old, returns, mask, clip=0.2), values.requires_grad_()
    )


def test_explained_variance_is_1_for_the_returns_themselves_and_0_for_a_constant():
    returns, mask = rows([1, 2, 6, NAN]), torch.tensor([[1, 1, 1, 0]])
    assert policy_losses.explained_variance(returns, returns, mask).item() == 1
    assert policy_losses.explained_variance(rows([5, 5, 5, NAN]), returns, mask).item() == pytest.approx(0)
    # Var R = (4 + 1 + 9) / 3; R − V = 0, 1, 0: Var = 2/9; 1 − (2/9) / (14/3) = 1 − 1/21
    explained = policy_losses.explained_variance(rows([1, 1, 6, NAN]), returns, mask)
    assert explained.item() == pytest.approx(20 / 21)
    assert policy_losses.explained_variance(returns, rows([2, 2, 2, NAN]), mask).isnan()


def test_importance_weights_are_truncated_ratios():
    logp, behaviour = rows([0.4, 0.9, 0.1, NAN]).log(), rows([0.8, 0.1, 0.1, NAN]).log()
    mask = torch.tensor([[1, 1, 1, 0]])
    weights = policy_losses.importance_weights(logp, behaviour, mask, truncate=2.0)
    assert weights[0].tolist() == pytest.approx([0.5, 2, 1, 0])
    # As a whole: 0.5 · 9 · 1 = 4.5
    weights = policy_losses.importance_weights(logp, behaviour, mask, truncate=5.0, level="sequence")
    assert weights[0].tolist() == pytest.approx([4.5, 4.5, 4.5, 0])


def test_importance_weights_make_stale_rollouts_as_good_as_fresh_ones():
    """The expected gradient over tokens that μ drew is that over tokens that π drew."""
    logits = torch.tensor([0.2, -0.5, 0.9], dtype=torch.float64, requires_grad=True)
    behaviour = torch.tensor([0.7, 0.1, -0.3], dtype=torch.float64).log_softmax(-1)
    reward = rows([1.0, -0.5, 0.3]).T
    mask = torch.ones(3, 1)

    def gradient(drawn_with: Tensor, weighted: bool) -> Tensor:
        logp = logits.log_softmax(-1)[:, None]
        old = logp.detach()
        weight = policy_losses.importance_weights(old, behaviour[:, None], mask, truncate=100.0)
        per_token, _ = losses.policy_gradient(
            logp,
            old,
            reward,
            mask,
            clip_low=0.2,
            clip_high=0.2,
            weight=weight if weighted else None,
            reduction="none",
        )
        return torch.autograd.grad((drawn_with[:, None] * per_token).sum(), logits)[0]

    fresh = gradient(logits.detach().softmax(-1), weighted=False)
    assert torch.allclose(gradient(behaviour.exp(), weighted=True), fresh)
    assert not torch.allclose(gradient(behaviour.exp(), weighted=False), fresh, atol=0.01)


def test_entropy_is_that_of_the_distribution():
    # A fair choice of four: log 4. Two filtered away: log 2.
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, -torch.inf, -torch.inf]], requires_grad=True)
    entropies = policy_losses.entropy(logits)
    assert entropies.tolist() == pytest.approx([math.log(4), math.log(2)])
    entropies.sum().backward()
    assert logits.grad.isfinite().all()
    assert torch.autograd.gradcheck(
        policy_losses.entropy, torch.randn(2, 5, dtype=torch.float64).requires_grad_()
    )


# ── a policy whose optimum is known ───────────────────────────────────────────────────
# Two tokens to choose from, answers of two: 4 answers, every expectation a sum. The optimum of
# E[r] − β KL(π ‖ p0) is p* ∝ p0 exp(r / β), Rafailov et al. 2023, equation 4.

BETA = 0.5
ANSWERS = torch.tensor(list(product((0, 1), repeat=2)))
REWARD = torch.tensor([1.0, 0.2, -0.3, 0.6], dtype=torch.float64)
ONES = torch.ones(4, 2)
BASE = torch.tensor([[0.4, -0.4], [0.0, 0.3], [-0.6, 0.1]], dtype=torch.float64)
"""Logits of the first token, of the second after a 0, and of the second after a 1."""


def token_logp(logits: Tensor) -> Tensor:
    """(4, 2): log-probability of each token of each answer."""
    logp = logits.log_softmax(-1)
    first, second = ANSWERS.T
    return torch.stack([logp[0, first], logp[1 + first, second]], dim=-1)


def optimum() -> Tensor:
    weights = token_logp(BASE).sum(-1).exp() * (REWARD / BETA).exp()
    return weights / weights.sum()


def rewards_per_token(logp: Tensor) -> Tensor:
    """−β k1 on every token, and the answer's reward on its last."""
    rewards = -BETA * kl.estimate(logp, token_logp(BASE), "k1")
    rewards[:, -1] += REWARD
    return rewards


def ppo_step(logits: Tensor, values: Tensor) -> Tensor:
    """PPO with a value for each of the three states and GAE; the whole sample space is the batch."""
    logp, probability = token_logp(logits), token_logp(logits).sum(-1).exp().detach()[:, None]
    predicted = torch.stack([values[0].expand(4), values[1 + ANSWERS[:, 0]]], dim=-1)
    old = logp.detach()
    token_advantages, returns = advantages.gae(rewards_per_token(old), predicted, ONES, gamma=1.0, lam=0.95)
    policy, _ = losses.policy_gradient(
        logp, old, token_advantages, ONES, clip_low=0.2, clip_high=0.2, reduction="none"
    )
    critic = losses.value(predicted, predicted.detach(), returns, ONES, clip=0.2, reduction="none")
    return (probability * (policy + critic)).sum()


def reinforce_step(logits: Tensor, values: Tensor) -> Tensor:
    """REINFORCE with the reward to go, without a baseline: no clip."""
    logp = token_logp(logits)
    old = logp.detach()
    token_advantages = advantages.discounted_returns(rewards_per_token(old), ONES, gamma=1.0)
    per_token, _ = losses.policy_gradient(
        logp, old, token_advantages, ONES, clip_low=FREE, clip_high=FREE, reduction="none"
    )
    return (old.sum(-1).exp()[:, None] * per_token).sum()


def group_step(advantage, *, kl_in_loss: bool = False):
    """A method on groups of two answers: all 16 groups, each with the probability that it is drawn."""

    def step(logits: Tensor, values: Tensor) -> Tensor:
        logp = token_logp(logits)
        old = logp.detach()
        score = REWARD if kl_in_loss else rewards_per_token(old).sum(-1)
        pairs = torch.cartesian_prod(torch.arange(4), torch.arange(4))
        chance = old.sum(-1).exp()[pairs].prod(-1)
        pair_advantages = advantage(score[pairs])
        per_answer = torch.zeros(4, dtype=torch.float64).index_add(
            0, pairs.flatten(), (chance[:, None] * pair_advantages).flatten()
        )
        per_token, _ = losses.policy_gradient(
            logp, old, per_answer, ONES, clip_low=0.2, clip_high=0.2, reduction="none"
        )
        if kl_in_loss:
            # k2 of whole responses: that of single tokens would leave out what the first token's
            # choice does to the second's divergence.
            drift = kl.estimate(logp.sum(-1), token_logp(BASE).sum(-1), "k2")
            # Leave-one-out sums to twice E[r ∇ log π] over a group of two.
            return per_token.sum() / 2 + BETA * (old.sum(-1).exp() * drift).sum()
        return per_token.sum()

    return step


METHODS = {
    "REINFORCE": reinforce_step,
    "PPO with GAE": ppo_step,
    "RLOO": group_step(advantages.leave_one_out),
    "Dr. GRPO": group_step(lambda rewards: advantages.group_relative(rewards, scale=False)),
    "GRPO": group_step(advantages.group_relative),
    "RLOO, KL in the loss": group_step(advantages.leave_one_out, kl_in_loss=True),
}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_reaches_the_known_optimum(method):
    logits = BASE.clone().requires_grad_()
    values = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    start = token_logp(BASE).sum(-1).exp()
    assert (start - optimum()).abs().max() > 0.2
    for step in range(400 if method == "GRPO" else 150):
        # Divided by their standard deviation, advantages of a group of two are ±1/√2 however close
        # the answers are: only a shrinking rate comes to rest.
        rate = 0.5 * 0.985**step if method == "GRPO" else 2.0
        loss = METHODS[method](logits, values)
        gradients = torch.autograd.grad(loss, (logits, values), allow_unused=True)
        with torch.no_grad():
            logits -= rate * gradients[0]
            if gradients[1] is not None:
                values -= rate * gradients[1]
    assert torch.allclose(token_logp(logits).sum(-1).exp(), optimum(), atol=1e-3)


def test_the_gradient_over_all_answers_is_that_of_the_objective_by_finite_differences():
    """∇ of E[r] − β KL, once as a policy gradient and once by shaking every logit."""

    def objective(logits: Tensor) -> float:
        logp = token_logp(logits).sum(-1)
        return float((logp.exp() * (REWARD - BETA * (logp - token_logp(BASE).sum(-1)))).sum())

    logits = (BASE + 0.3 * torch.arange(6, dtype=torch.float64).reshape(3, 2).sin()).requires_grad_()
    gradient = -torch.autograd.grad(reinforce_step(logits, torch.zeros(3)), logits)[0]
    for row, column in product(range(3), range(2)):
        shaken = torch.zeros(3, 2, dtype=torch.float64)
        shaken[row, column] = 1e-6
        with torch.no_grad():
            slope = (objective(logits + shaken) - objective(logits - shaken)) / 2e-6
        assert gradient[row, column].item() == pytest.approx(slope, abs=1e-7)
