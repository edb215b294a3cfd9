"""Learn from one batch of samples: inner epochs, minibatches, passes, and a step for each minibatch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from training.contract.methods.policy_gradient import KlSettings, UpdateSettings
from training.rlhf.policy_gradient.credit import Credit
from training.rlhf.policy_gradient.episodes import Episodes
from training.rlhf.policy_gradient.objective import Evaluated as Evaluated
from training.rlhf.policy_gradient.objective import Objective, Window
from training.rlhf.policy_gradient.share import Share
from training.rlhf.policy_gradient.tally import Tally


class Actor(Protocol):
    """A policy, and what belongs to it, that knows its samples by their row."""

    def passes(self, rows: Sequence[int]) -> Iterator[list[int]]:
        """These rows cut into forward passes that fit into memory; rows of one group stay together."""
        ...

    def evaluate(self, rows: list[int]) -> Evaluated:
        """Evaluate in one forward pass: the same rows give the same numbers until the next optimiser step."""
        ...

    def halve(self) -> bool:
        """Cut passes half as large from now on; False where they cannot be smaller."""
        ...


class OptimizerStep(NamedTuple):
    """Result of one optimiser step."""

    gradient_norm: float
    """Before clipping."""
    finite: bool
    """False: the norm was not finite, or the caller's loss was not, and nothing was learned."""


Step = Callable[[bool], OptimizerStep]
"""Clips the gradient, takes an optimiser step unless told False or the norm is not finite, and empties the
gradient either way."""


class UpdateResult(NamedTuple):
    """Result of updates on one batch of samples."""

    figures: dict[str, float]
    """See `update_policy`."""
    epochs: int
    """Inner epochs begun."""
    steps: int
    """Optimiser steps taken."""
    skipped: int
    """Optimiser steps not taken as loss or gradient was not finite."""
    stopped_early: bool
    """Return whether `stop_at_kl` ended it."""


@torch.no_grad()
def evaluated_once(actor: Actor, episodes: Episodes, rows: Sequence[int] | None = None) -> Episodes:
    """Return the episodes with old_logp and, where the actor has values, old_values: as it sees them now.

    rows: which to evaluate; None is all. The others are 0, and both are None where there are no rows.
    """
    logp: Tensor | None = None
    values: Tensor | None = None
    for part in actor.passes(range(len(episodes.mask)) if rows is None else rows):
        evaluated = actor.evaluate(part)
        logp = evaluated.logp.new_zeros(episodes.mask.shape) if logp is None else logp
        logp[part] = evaluated.logp
        if evaluated.values is not None:
            values = evaluated.values.new_zeros(episodes.mask.shape) if values is None else values
            values[part] = evaluated.values
    return dataclasses.replace(episodes, old_logp=logp, old_values=values)


def update_policy(
    actor: Actor,
    episodes: Episodes,
    credit: Credit,
    *,
    settings: UpdateSettings,
    kl: KlSettings,
    beta: float,
    constant: float | None,
    only_value: bool = False,
    step: Step,
    backward: Callable[[Tensor], None],
    seed: int,
    check: Callable[[], None],
    share: Share | None = None,
) -> UpdateResult:
    """Learn from one batch of samples, and tell how it went.

    constant: the longest answer allowed, used with aggregate "constant" alone. only_value: the
    value head alone learns, and the policy stays. step: see `Step`. backward:
    adds a loss's gradient. seed: of the order in which prompts fall into minibatches. check: called before
    each pass; what it raises passes through. share: of the answers that this process computes; None is all.

    A minibatch whose advantages are all 0, without a value head to teach, takes no step: neither momentum nor
    rounding errors move the policy. One whose divergence from the sampling policy exceeds `stop_at_kl` takes
    none either, and ends the update. Where memory runs out a minibatch restarts in smaller passes.

    Figures: means over tokens or, from gradient_norm on, over optimiser steps.

        ratio_mean, ratio_min, ratio_max   of new to old probability; the extremes of all passes
        clip_fraction, clip_fraction_low   of tokens whose gradient the clip took; low: with a ratio below 1
        approximate_kl                     k3 of KL(π_old ‖ π), in the last epoch
        entropy                            of the next token, nats
        sampler_gap, importance_weight     |log π_old − log μ|, and what was made of it
        importance_truncated               share of tokens whose weight was cut at `truncate`
        gradient_norm                      before clipping
        policy_loss, kl_loss, entropy_loss, value_loss   as they enter the sum, with their weights
        updates, skipped                   optimiser steps taken; refused as something was not finite

    Raises `ValueError` where the settings need something that episodes or actor do not have.
    """
    objective = Objective(
        episodes, credit, settings=settings, kl=kl, beta=beta, constant=constant, only_value=only_value
    )
    learner = _Learner(
        actor, objective, episodes, credit, stop_at_kl=settings.stop_at_kl, share=share or Share()
    )
    random = torch.Generator().manual_seed(seed)
    epochs, stopped = 0, False
    while epochs < settings.inner_epochs and not stopped:
        epochs += 1
        learner.tally.forget("approximate_kl")
        for rows in _minibatches(episodes.groups, settings.minibatches, random):
            stopped = not learner.learn(rows, step, backward, check)
            if stopped:
                break
    counts = {"updates": float(learner.steps), "skipped": float(learner.skipped)}
    return UpdateResult(
        {**learner.tally.figures(), **counts}, epochs, learner.steps, learner.skipped, stopped_early=stopped
    )


def _minibatches(groups: list[list[int]], count: int, random: torch.Generator) -> Iterator[list[int]]:
    """Rows of each minibatch: random equal shares of the prompts. A single one keeps their order."""
    order = torch.randperm(len(groups), generator=random) if count > 1 else torch.arange(len(groups))
    for share in order.tensor_split(count):
        if len(share):
            yield [row for index in sorted(share.tolist()) for row in groups[index]]


class _Learner:
    """Takes the steps of minibatches and keeps the tally."""

    def __init__(
        self,
        actor: Actor,
        objective: Objective,
        episodes: Episodes,
        credit: Credit,
        *,
        stop_at_kl: float | None,
        share: Share,
    ) -> None:
        self._share = share
        self._group: list[int] = episodes.group.tolist()
        self._actor = actor
        self._objective = objective
        self._stop_at_kl = stop_at_kl
        self._teaches_values = credit.returns is not None
        self._lengths: list[int] = episodes.kept.sum(-1).tolist()
        # NaN is other than 0: it must reach the loss, which is then refused.
        self._teaches: list[bool] = (credit.advantages != 0).any(-1).tolist()
        self.tally = Tally()
        self.steps = 0
        self.skipped = 0

    def learn(
        self, rows: list[int], step: Step, backward: Callable[[Tensor], None], check: Callable[[], None]
    ) -> bool:
        """Take the step of one minibatch; False where the policy has gone too far to take it."""
        rows = [row for row in rows if self._lengths[row]]
        if not rows or not (self._teaches_values or any(self._teaches[row] for row in rows)):
            return True
        gradient, finite = self._gradient(rows, step, backward, check)
        if finite:
            self.tally.join(gradient)
            gone = gradient.figures()["approximate_kl"] if self._stop_at_kl is not None else 0.0
            if self._stop_at_kl is not None and gone > self._stop_at_kl:
                step(False)
                return False
        result = step(finite)
        self.steps += result.finite
        self.skipped += not result.finite
        if math.isfinite(result.gradient_norm):
            self.tally.add("gradient_norm", result.gradient_norm)
        return True

    def _gradient(
        self, rows: list[int], step: Step, backward: Callable[[Tensor], None], check: Callable[[], None]
    ) -> tuple[Tally, bool]:
        """Accumulate a minibatch's gradient; its figures, and whether its loss is finite. In all processes it
        is done, or done again, together."""
        fresh = self._objective.unseen(rows)
        while True:
            lacking: torch.OutOfMemoryError | None = None
            tally, sums = Tally(), dict[str, float]()
            try:
                tally, sums = self._accumulate(rows, backward, check)
            except torch.OutOfMemoryError as error:
                lacking = error
            if not self._share.any(lacking is not None):
                break
            # What the broken pass had added cannot be told from the rest: all of it goes.
            step(False)
            self._objective.forget(fresh)
            if not self._actor.halve() and lacking is not None:
                raise lacking
        tally, sums = self._share.joined(tally, sums)
        for name, total in sums.items():
            tally.add(name, total)
        return tally, all(map(math.isfinite, sums.values()))

    def _accumulate(
        self, rows: list[int], backward: Callable[[Tensor], None], check: Callable[[], None]
    ) -> tuple[Tally, dict[str, float]]:
        """Add this process's part of the gradient; its figures, and its part of each loss term."""
        window = Window(float(sum(self._lengths[row] for row in rows)), float(len(rows)))
        if not self._objective.touches_all:
            # Answers without an advantage count in the window, and cost no pass.
            rows = [row for row in rows if self._teaches[row]]
        rows = self._share.rows(self._group, rows)
        tally = Tally()
        sums: dict[str, Tensor] = {}
        for part in self._actor.passes(rows):
            check()
            terms = self._objective.terms(part, self._actor.evaluate(part), window, tally)
            backward(torch.stack(list(terms.values())).sum())
            for name, term in terms.items():
                sums[name] = sums.get(name, torch.zeros_like(term)).detach() + term.detach()
        return tally, {name: float(total) for name, total in sums.items()}
