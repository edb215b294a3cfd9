"""A policy that is a table, for tests of the policy gradient: logits and a value for each state."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from training.contract.methods.policy import KlSettings, UpdateSettings
from training.rlhf import losses as policy_losses
from training.rlhf.policy_gradient.credit import Credit, EpisodeBatch
from training.rlhf.policy_gradient.update import Evaluated, OptimizerStep, UpdateResult, update_policy


class Tabular:
    """An actor whose samples are given: (B, T) states and the actions that were taken there."""

    def __init__(
        self,
        logits: Tensor,
        states: Tensor,
        actions: Tensor,
        *,
        values: Tensor | None = None,
        base: Tensor | None = None,
        at_once: int = 10**9,
    ) -> None:
        self.logits = logits.detach().clone().requires_grad_()
        self.values = None if values is None else values.detach().clone().requires_grad_()
        self.base = base
        self.states, self.actions = states, actions
        self.at_once = at_once
        self.seen: list[list[int]] = []

    @property
    def parameters(self) -> list[Tensor]:
        return [self.logits] if self.values is None else [self.logits, self.values]

    def passes(self, rows: Sequence[int]) -> Iterator[list[int]]:
        for start in range(0, len(rows), self.at_once):
            yield list(rows[start : start + self.at_once])

    def halve(self) -> bool:
        self.at_once //= 2
        return self.at_once > 0

    def evaluate(self, rows: list[int]) -> Evaluated:
        self.seen.append(rows)
        logits = self.logits[self.states[rows]]
        return Evaluated(
            logits.log_softmax(-1).gather(-1, self.actions[rows].unsqueeze(-1)).squeeze(-1),
            policy_losses.entropy(logits),
            None if self.values is None else self.values[self.states[rows]],
            None if self.base is None else _full(logits, self.base[self.states[rows]]),
        )


def _full(logits: Tensor, base: Tensor) -> Tensor:
    logp = logits.log_softmax(-1)
    return (logp.exp() * (logp - base.log_softmax(-1))).sum(-1)


class Descent:
    """Plain gradient descent, which keeps the gradients that it was given."""

    def __init__(self, parameters: list[Tensor], rate: float) -> None:
        self.parameters = parameters
        self.rate = rate
        self.gradients: list[list[Tensor]] = []
        self.refused = 0

    def __call__(self, apply: bool) -> OptimizerStep:
        step_gradients = [
            torch.zeros_like(each) if each.grad is None else each.grad.clone() for each in self.parameters
        ]
        for each in self.parameters:
            each.grad = None
        norm = math.sqrt(sum(float(each.square().sum()) for each in step_gradients))
        if not (apply and math.isfinite(norm)):
            self.refused += 1
            return OptimizerStep(norm, False)
        self.gradients.append(step_gradients)
        with torch.no_grad():
            for each, gradient in zip(self.parameters, step_gradients, strict=True):
                each -= self.rate * gradient
        return OptimizerStep(norm, True)


def update(
    actor: Tabular,
    episodes: EpisodeBatch,
    credit: Credit,
    step: Descent,
    *,
    kl: KlSettings | None = None,
    beta: float = 0.0,
    constant: float | None = None,
    seed: int = 0,
    **settings: Any,
) -> UpdateResult:
    return update_policy(
        actor,
        episodes,
        credit,
        settings=UpdateSettings(**settings),
        kl=kl or KlSettings(place="none"),
        beta=beta,
        constant=constant,
        step=step,
        backward=lambda loss: loss.backward(),
        seed=seed,
        check=lambda: None,
    )


def credit_of(advantages: Tensor, returns: Tensor | None = None) -> Credit:
    """Credit that is given, not worked out."""
    return Credit(advantages, returns, advantages, torch.zeros(1, dtype=torch.bool))


B, T, STATES, ACTIONS = 6, 4, 3, 3
LONGEST = 5.0
K2 = KlSettings(place="loss", kind="k2")


def scene(*, old: bool = True, padding: int = 0, **actor: Any) -> tuple[Tabular, EpisodeBatch, Credit]:
    """Six answers to three prompts, by a policy that has moved a little; columns of NaN are added."""
    random = torch.Generator().manual_seed(3)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    logits, base, values = drawn(STATES, ACTIONS), drawn(STATES, ACTIONS), drawn(STATES)
    states = torch.randint(STATES, (B, T), generator=random)
    actions = torch.randint(ACTIONS, (B, T), generator=random)
    mask = torch.tensor(
        [[1, 1, 1, 1], [1, 0, 1, 0], [1, 1, 0, 0], [0, 1, 1, 1], [1, 0, 0, 0], [0, 1, 1, 0]]
    ).bool()
    advantages = torch.where(mask, drawn(B, T), 0.0)
    returns = torch.where(mask, drawn(B, T), 0.0)
    evaluation = Tabular(logits, states, actions, values=values, base=base).evaluate(list(range(B)))
    reference = base[states].log_softmax(-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def wide(tensor: Tensor, fill: float = math.nan) -> Tensor:
        filled = tensor if math.isfinite(fill) else tensor.masked_fill(~mask, fill)
        return torch.cat([filled, tensor.new_full((B, padding), fill)], dim=1).detach()

    before = evaluation.logp.detach() + 0.2 * drawn(B, T)
    episodes = EpisodeBatch(
        mask=torch.cat([mask, torch.zeros(B, padding, dtype=torch.bool)], dim=1),
        rewards=wide(advantages),
        scored=torch.ones(B, dtype=torch.bool),
        group=torch.tensor([0, 0, 1, 1, 2, 2]),
        old_logp=wide(before) if old else None,
        behaviour_logp=wide(before + 0.3 * drawn(B, T)),
        ref_logp=wide(reference),
        old_values=wide(evaluation.values.detach() + 0.1 * drawn(B, T)),
    )
    zeros = torch.zeros(B, padding, dtype=torch.long)
    tabular = Tabular(
        logits,
        torch.cat([states, zeros], dim=1),
        torch.cat([actions, zeros], dim=1),
        values=values,
        base=base,
        **actor,
    )
    return tabular, episodes, credit_of(wide(advantages, 0.0), wide(returns, 0.0))


def everything(aggregate: str) -> dict[str, Any]:
    """Every term of the loss at once."""
    return {
        "aggregate": aggregate,
        "constant": LONGEST,
        "clip_low": 0.1,
        "clip_high": 0.25,
        "truncate": 1.2,
        "entropy": 0.05,
        "value_clip": 0.05,
        "kl": K2,
        "beta": 0.3,
    }


def gradients(actor: Tabular, episodes: EpisodeBatch, credit: Credit, **settings: Any) -> list[Tensor]:
    """Those of one step, which moves nothing."""
    descent = Descent(actor.parameters, rate=0.0)
    update(actor, episodes, credit, descent, **settings)
    assert len(descent.gradients) == 1
    return descent.gradients[0]
