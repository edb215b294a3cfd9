"""Every method of the table of settings reaches the policy that is known to be best.

A language model of two tokens, with a logit for each after each beginning, answers with two tokens. The
optimum of E[r] − β KL(π ‖ p0) is p* ∝ p0 exp(r / β) (Rafailov et al. 2023, equation 4). Samples are drawn
systematically, each answer as often as its probability says to within one, so that little is left to
chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.rlhf.policy_gradient.tabular import Descent, Tabular, update
from training.contract.methods.policy import AdvantageSettings, KlSettings
from training.rlhf.policy_gradient.credit import CreditAssignment, EpisodeBatch
from training.rlhf.policy_gradient.update import evaluated_once

BETA = 0.5
ANSWERS = torch.tensor(list(product((0, 1), repeat=2)))
STATES = torch.stack([torch.zeros(4, dtype=torch.long), 1 + ANSWERS[:, 0]], dim=-1)
REWARD = torch.tensor([1.0, 0.2, -0.3, 0.6], dtype=torch.float64)
BASE = torch.tensor([[0.4, -0.4], [0.0, 0.3], [-0.6, 0.1]], dtype=torch.float64)
"""Logits of the first token, of the second after a 0, and of the second after a 1."""

CHOICES, ONE_STATE = torch.arange(4).unsqueeze(-1), torch.zeros(4, 1, dtype=torch.long)
BASE_OF_CHOICES = torch.tensor([[0.3, -0.2, 0.5, 0.0]], dtype=torch.float64)
"""The same rewards for answers of one token, of which there are four."""

REINFORCE = {"kind": "running_mean"}
PPO = {"kind": "gae"}
GRPO = {"kind": "group_relative"}
DR_GRPO = {"kind": "group_relative", "scale": False}
RLOO = {"kind": "leave_one_out"}
PPO_UPDATE = {"inner_epochs": 3, "minibatches": 2, "value_weight": 1.0, "value_clip": None}
CONSTANT = {"aggregate": "constant", "constant": 2.0}

METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "REINFORCE": (REINFORCE, {}),
    "PPO": (PPO, PPO_UPDATE),
    "Dr. GRPO": (DR_GRPO, CONSTANT),
    "RLOO": (RLOO, CONSTANT),
}
SCALED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "GRPO": (GRPO, {"aggregate": "sequence"}),
    "PPO, whitened": ({**PPO, "whiten": True}, PPO_UPDATE),
}


def logp_of_tokens(logits: Tensor, states: Tensor, actions: Tensor) -> Tensor:
    return logits.log_softmax(-1)[states, actions]


def drawn_systematically(chances: Tensor, count: int, offset: float) -> Tensor:
    """`count` answers, each as often as its chance says, one more or one less (Kitagawa 1996)."""
    places = (torch.arange(count, dtype=torch.float64) + offset) / count
    return torch.searchsorted(chances.cumsum(0), places).clamp(max=len(chances) - 1)


def learned(
    kl: KlSettings,
    advantage: dict[str, Any],
    options: dict[str, Any],
    *,
    one_token: bool = False,
    steps: int | None = None,
    rate: float = 2.0,
    shrink: float = 1.0,
    draws: int = 400,
) -> Tensor:
    """Probabilities of the four answers at the end."""
    base = BASE_OF_CHOICES if one_token else BASE
    states, answers = (ONE_STATE, CHOICES) if one_token else (STATES, ANSWERS)
    random = torch.Generator().manual_seed(0)
    actor = Tabular(base, states, answers, values=torch.zeros(3, dtype=torch.float64), base=base)
    if advantage["kind"] != "gae":
        actor.values = None
    assignment = CreditAssignment(AdvantageSettings(**advantage), kl)
    # Groups are shares of the draws in PPO, whose minibatches need several; each is drawn for itself.
    groups = 2 if advantage["kind"] == "gae" else 1
    # … with six optimiser steps to each batch.
    for step in range((30 if groups > 1 else 100) if steps is None else steps):
        chances = logp_of_tokens(actor.logits.detach(), states, answers).sum(-1).exp()
        draw = torch.cat(
            [
                drawn_systematically(chances, draws // groups, float(torch.rand(1, generator=random)))
                for _ in range(groups)
            ]
        )
        actor.states, actor.actions = states[draw], answers[draw]
        rewards = torch.zeros(draws, states.shape[1])
        rewards[:, -1] = REWARD[draw].float()
        episodes = EpisodeBatch(
            mask=torch.ones_like(rewards, dtype=torch.bool),
            rewards=rewards,
            scored=torch.ones(draws, dtype=torch.bool),
            group=torch.arange(groups).repeat_interleave(draws // groups),
            ref_logp=logp_of_tokens(base, actor.states, actor.actions),
        )
        episodes = evaluated_once(actor, episodes)
        credit = assignment.assign(episodes)
        descent = Descent(actor.parameters, rate * shrink**step)
        update(actor, episodes, credit, descent, kl=kl, beta=assignment.beta, seed=step, **options)
    return logp_of_tokens(actor.logits.detach(), states, answers).sum(-1).exp()


def optimum(*, one_token: bool, beta: float = BETA) -> Tensor:
    """p* ∝ p0 exp(r / β)."""
    base = (
        logp_of_tokens(BASE_OF_CHOICES, ONE_STATE, CHOICES)
        if one_token
        else logp_of_tokens(BASE, STATES, ANSWERS)
    )
    return (base.sum(-1) + REWARD / beta).softmax(-1)


def root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the point where a falling function is 0."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > 0 else (low, middle)
    return low


IN_REWARD = KlSettings(place="reward", kind="k1", beta=BETA)
SETTLING: dict[str, dict[str, Any]] = {
    "GRPO": {"shrink": 0.96, "steps": 150},
    "PPO, whitened": {"shrink": 0.9, "steps": 50},
}
"""Advantages that are divided by their deviation stay large near the optimum: only shrinking steps rest."""


@pytest.mark.parametrize("method", METHODS)
def test_with_divergence_in_the_reward_every_method_reaches_the_optimum(method):
    assert (learned(IN_REWARD, *METHODS[method], steps=0) - optimum(one_token=False)).abs().max() > 0.2
    policy = learned(IN_REWARD, *METHODS[method])
    assert torch.allclose(policy, optimum(one_token=False), atol=5e-3)


@pytest.mark.parametrize("method", SCALED)
def test_so_do_those_that_divide_by_the_deviation_with_shrinking_steps(method):
    policy = learned(IN_REWARD, *SCALED[method], rate=0.5, **SETTLING[method])
    assert torch.allclose(policy, optimum(one_token=False), atol=5e-3)


@pytest.mark.parametrize("kind", ["k2", "full"])
@pytest.mark.parametrize("method", METHODS)
def test_with_divergence_in_the_loss_every_method_reaches_the_optimum_of_a_choice(method, kind):
    policy = learned(KlSettings(place="loss", kind=kind, beta=BETA), *METHODS[method], one_token=True)
    assert torch.allclose(policy, optimum(one_token=True), atol=5e-3)


@pytest.mark.parametrize("method", METHODS)
def test_k3_in_the_loss_reaches_the_optimum_of_the_reverse_divergence(method):
    # E[r] − β KL(p0 ‖ π) is best where r_i + β p0_i / π_i is one λ: π_i = β p0_i / (λ − r_i), λ above every
    # reward and such that they add up to 1.
    base = logp_of_tokens(BASE_OF_CHOICES, ONE_STATE, CHOICES).sum(-1).exp()
    level = root(lambda x: float((BETA * base / (x - REWARD)).sum()) - 1, 1 + 1e-9, 10.0)
    expected = BETA * base / (level - REWARD)
    policy = learned(KlSettings(place="loss", kind="k3", beta=BETA), *METHODS[method], one_token=True)
    assert torch.allclose(policy, expected, atol=5e-3)
    assert (expected - optimum(one_token=True)).abs().max() > 0.03


def test_grpo_with_divergence_in_the_loss_pays_for_it_by_the_deviation_of_its_rewards():
    # Rewards divided by their deviation σ under π: p ∝ p0 exp(r / (β σ(p))), a fixed point in σ.
    def deviation(chances: Tensor) -> float:
        return math.sqrt(float((chances * (REWARD - (chances * REWARD).sum()).square()).sum()))

    sigma = root(lambda s: deviation(optimum(one_token=True, beta=BETA * s)) - s, 1e-3, 2.0)
    expected = optimum(one_token=True, beta=BETA * sigma)
    in_loss = KlSettings(place="loss", kind="k2", beta=BETA)
    policy = learned(in_loss, *SCALED["GRPO"], one_token=True)
    assert torch.allclose(policy, expected, atol=5e-3)
    assert (expected - optimum(one_token=True)).abs().max() > 0.03


@pytest.mark.parametrize("kind", ["k2", "full"])
def test_divergence_in_the_loss_holds_no_token_to_account_for_where_it_leads(kind):
    # The second token is chosen as above; the first by what is earned after it, its later divergence free.
    base = BASE.log_softmax(-1)
    second = (base[1:] + REWARD.reshape(2, 2) / BETA).softmax(-1)
    first = (base[0] + (second * REWARD.reshape(2, 2)).sum(-1) / BETA).softmax(-1)
    expected = (first.unsqueeze(-1) * second).flatten()
    policy = learned(KlSettings(place="loss", kind=kind, beta=BETA), *METHODS["RLOO"], steps=150)
    assert torch.allclose(policy, expected, atol=5e-3)
    assert (expected - optimum(one_token=False)).abs().max() > 0.01
