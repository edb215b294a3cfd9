"""Learn from one batch of samples: inner epochs, minibatches, passes, and a step for each minibatch."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from training.contract import ContractError
from training.contract.methods.policy import KlSettings, UpdateSettings
from training.rlhf.kl import estimate
from training.rlhf.losses import aggregated, dpo, importance_weights, policy_gradient, value
from training.rlhf.model.sharding import clip_gradients
from training.rlhf.policy_gradient.credit import Credit, EpisodeBatch
from training.rlhf.runtime.processes import Processes, Share

T = TypeVar("T", float, Tensor | float)


def _add(totals: dict[str, T], parts: Mapping[str, T]) -> None:
    """Add each of `parts` to the total of its name."""
    for name, part in parts.items():
        totals[name] = totals[name] + part if name in totals else part


class Tally:
    """Weighted means, least and greatest values by name; nothing is fetched from a device until asked for."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor | float] = {}
        self._weights: dict[str, float] = {}
        self._extremes: dict[str, list[Tensor | float]] = {}

    def add(self, name: str, value: Tensor | float, weight: float = 1.0) -> None:
        """A mean over `weight` things."""
        self._sums[name] = self._sums.get(name, 0.0) + value * weight
        self._weights[name] = self._weights.get(name, 0.0) + weight

    def extend(self, name: str, value: Tensor | float) -> None:
        """An extreme; the name says which: it ends in _min or _max."""
        self._extremes.setdefault(name, []).append(value)

    def join(self, other: Tally) -> None:
        """Take in what another has gathered."""
        _add(self._sums, other._sums)
        _add(self._weights, other._weights)
        for name, values in other._extremes.items():
            self._extremes.setdefault(name, []).extend(values)

    def plain(self) -> Tally:
        """Return the same with plain numbers, which another process can read."""
        plain = Tally()
        plain._sums = {name: float(value) for name, value in self._sums.items()}
        plain._weights = dict(self._weights)
        plain._extremes = {
            name: [float(value) for value in values] for name, values in self._extremes.items()
        }
        return plain

    def forget(self, name: str) -> None:
        """Reset one mean."""
        self._sums.pop(name, None)
        self._weights.pop(name, None)

    def figures(self) -> dict[str, float]:
        """Return all of them as plain numbers; what has no weight is left out."""
        means = {name: float(self._sums[name]) / weight for name, weight in self._weights.items() if weight}
        ends = {
            name: (min if name.endswith("_min") else max)(float(value) for value in values)
            for name, values in self._extremes.items()
        }
        return {**means, **ends}


class Evaluated(NamedTuple):
    """Evaluation of b completions by a policy: (b, T) each, with gradient, anything outside the mask."""

    logp: Tensor
    """log π of the actions, under the temperature and the filters that they were drawn with."""
    entropy: Tensor | None = None
    """Of the distribution that each action was drawn from, in nats."""
    values: Tensor | None = None
    """Return expected by the value head from before each action on."""
    full_kl: Tensor | None = None
    """KL(π ‖ π_ref) of each action's distribution, over all actions."""


class Window(NamedTuple):
    """Normaliser of a minibatch: the divisor of its passes' losses."""

    tokens: float
    answers: float
    pairs: float = 0.0
    """Prompts whose best answer stands against their worst, with loss dpo."""


class PolicyObjective:
    """The loss, of which every pass computes its part.

    The loss of a token is −min(ρ A, clip(ρ) A) w + β KL − c H: the clipped policy gradient with its
    importance weight w, the divergence where that has its place in the loss, and the entropy H. ρ is the
    token's ratio or its answer's; with `loss` cispo the first term is −clip(ρ) A log π w. Tokens become one
    loss as `aggregate` says, over the whole minibatch however it is cut into passes; the value head's loss,
    the mean over tokens, is added.

    With `loss` distil it is β KL alone, or the clipped policy gradient where divergence is all that a token
    earns. With `loss` dpo it is, of the best answer to each prompt against the
    worst, that of direct preference optimisation, −log σ(β h), averaged over the prompts of the minibatch;
    see `losses.dpo`.

    Divergence in the loss is that of the next token, wherever the policy has come to stand. Unlike divergence
    in the reward it does not hold a token to account for where it leads, so for answers of several tokens the
    two have different optima.
    """

    def __init__(
        self,
        episodes: EpisodeBatch,
        credit: Credit,
        *,
        settings: UpdateSettings,
        kl: KlSettings,
        beta: float,
        constant: float | None,
        only_value: bool = False,
    ) -> None:
        """As for `update_policy`, and with its errors."""
        pairs = settings.loss == "dpo"
        self._beta = beta if kl.place == "loss" and not pairs else 0.0
        self._pair_beta = beta
        if pairs and episodes.ref_logp is None:
            raise ValueError("loss 'dpo' needs ref_logp")
        self._constant = constant if settings.aggregate == "constant" else None
        if settings.aggregate == "constant" and constant is None:
            raise ValueError("aggregate 'constant' needs a constant: the longest answer allowed")
        if episodes.old_logp is None and settings.minibatches > 1:
            raise ValueError(
                "with several minibatches old_logp must be given: the second would see a policy that the "
                "first has moved (`evaluated_once` gives it)"
            )
        if settings.truncate is not None and episodes.behaviour_logp is None:
            raise ValueError("truncate weighs against the sampler: behaviour_logp is needed")
        if self._beta and kl.kind != "full" and episodes.ref_logp is None:
            raise ValueError("divergence in the loss needs ref_logp")
        if only_value and credit.returns is None:
            raise ValueError("there is no value head that could learn alone")
        self._only_value = only_value
        self._episodes = episodes
        self._credit = credit
        self._settings = settings
        self._kl = kl
        self._kept = episodes.kept
        self._old = episodes.old_logp
        self._given = episodes.old_logp is not None
        self._first_seen: set[int] = set()

    @property
    def distils(self) -> bool:
        """Return whether the divergence is all that is learned from."""
        return self._settings.loss == "distil"

    @property
    def touches_all(self) -> bool:
        """Return whether answers without an advantage take a gradient too."""
        return (
            self.distils or self._beta > 0 or self._settings.entropy > 0 or self._credit.returns is not None
        )

    def unseen(self, rows: list[int]) -> set[int]:
        """Those whose first pass is still to come, which will give their old log-probabilities."""
        return set() if self._given else set(rows) - self._first_seen

    def forget(self, rows: set[int]) -> None:
        """These rows' first pass did not count."""
        self._first_seen -= rows

    def terms(self, rows: list[int], evaluated: Evaluated, window: Window, tally: Tally) -> dict[str, Tensor]:
        """Parts of the loss by name, scalars with gradient; figures go into the tally."""
        mask = self._kept[rows]
        logp = _within(mask, evaluated.logp)
        old = _within(mask, self._old_logp(rows, evaluated.logp))
        tokens = float(mask.sum())
        settings = self._settings
        per_token, statistics = policy_gradient(
            logp,
            old,
            self._credit.advantages[rows],
            mask,
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            surrogate="cispo" if settings.loss == "cispo" else "clipped",
            level=settings.ratio,
            weight=self._weights(rows, old, mask, tally, tokens),
            reduction="none",
        )
        for name, figure in statistics.items():
            if name in ("ratio_min", "ratio_max"):
                tally.extend(name, figure)
            else:
                tally.add(name, figure, tokens)
        if settings.loss == "dpo":
            return {"policy_loss": self._pair_loss(rows, logp, mask, window, tally)}
        if self.distils and self._kl.place == "loss":
            return {
                "kl_loss": self._beta
                * self._term(self._divergence(rows, logp, evaluated, mask), mask, window)
            }
        terms = {"policy_loss": self._term(per_token, mask, window)}
        if self._beta:
            divergence = self._divergence(rows, logp, evaluated, mask)
            terms["kl_loss"] = self._beta * self._term(divergence, mask, window)
        if evaluated.entropy is not None:
            spread = _within(mask, evaluated.entropy)
            tally.add("entropy", spread.detach().sum() / max(tokens, 1), tokens)
            if settings.entropy:
                terms["entropy_loss"] = -settings.entropy * self._term(spread, mask, window)
        elif settings.entropy:
            raise ValueError("an entropy bonus needs the actor's entropy")
        if self._credit.returns is not None:
            terms["value_loss"] = settings.value_weight * self._value_loss(rows, evaluated, mask, window)
        return {"value_loss": terms["value_loss"]} if self._only_value else terms

    def _pair_loss(self, rows: list[int], logp: Tensor, mask: Tensor, window: Window, tally: Tally) -> Tensor:
        """Return this pass's part of the mean over pairs; a prompt's best and worst stand in one pass."""
        assert self._episodes.ref_logp is not None  # noqa: S101 - looked at in __init__
        reference = _within(mask, self._episodes.ref_logp[rows].detach()).sum(-1)
        policy = logp.sum(-1)
        mark = torch.where(mask, self._credit.advantages[rows], 0.0).sum(-1).sign()
        group = self._episodes.group[rows]
        best, worst = (torch.nonzero(mark == side).flatten() for side in (1, -1))
        same = group[best].unsqueeze(1) == group[worst].unsqueeze(0)
        if len(best) != len(worst) or not same.any(1).all():
            raise ContractError(
                "optimiser, micro_batch_tokens: the best and the worst answer to a prompt do not fit into "
                "one pass; raise it"
            )
        worst = worst[same.float().argmax(1)]
        losses = dpo(
            policy[best],
            policy[worst],
            reference[best],
            reference[worst],
            beta=self._pair_beta,
            reduction="none",
        )
        margin = (policy - reference)[best] - (policy - reference)[worst]
        tally.add("pair_accuracy", (margin.detach() > 0).float().mean(), float(len(best)))
        return losses.sum() / max(window.pairs, 1.0)

    def _old_logp(self, rows: list[int], logp: Tensor) -> Tensor:
        if not self._given:
            if self._old is None:
                self._old = logp.new_zeros(self._kept.shape)
            if not self._first_seen.issuperset(rows):
                self._old[rows] = logp.detach()
                self._first_seen.update(rows)
        assert self._old is not None  # noqa: S101
        return self._old[rows].detach()

    def _weights(
        self, rows: list[int], old: Tensor, mask: Tensor, tally: Tally, tokens: float
    ) -> Tensor | None:
        """Importance weights, None where there are to be none."""
        if self._episodes.behaviour_logp is None:
            return None
        drawn = _within(mask, self._episodes.behaviour_logp[rows].to(old.dtype))
        tally.add("sampler_gap", (old - drawn).abs().sum() / max(tokens, 1), tokens)
        if self._settings.truncate is None:
            return None
        truncate, level = self._settings.truncate, self._settings.truncate_level
        whole = importance_weights(old, drawn, mask, truncate=math.inf, level=level)
        weights, cut = whole.clamp(max=truncate), whole > truncate
        tally.add("importance_weight", weights.sum() / max(tokens, 1), tokens)
        tally.add("importance_truncated", cut.sum() / max(tokens, 1), tokens)
        return weights

    def _divergence(self, rows: list[int], logp: Tensor, evaluated: Evaluated, mask: Tensor) -> Tensor:
        """KL of each token as the settings estimate it, 0 outside the mask: (b, T)."""
        if self._kl.kind == "full":
            if evaluated.full_kl is None:
                raise ValueError("full divergence needs the actor's full_kl")
            return _within(mask, evaluated.full_kl)
        assert self._episodes.ref_logp is not None  # noqa: S101 - looked at in __init__
        return estimate(logp, _within(mask, self._episodes.ref_logp[rows].detach()), self._kl.kind)

    def _value_loss(self, rows: list[int], evaluated: Evaluated, mask: Tensor, window: Window) -> Tensor:
        before, returns = self._episodes.old_values, self._credit.returns
        if evaluated.values is None or before is None or returns is None:
            raise ValueError("gae needs the actor's values and old_values")
        return value(
            evaluated.values,
            before[rows],
            returns[rows],
            mask,
            clip=self._settings.value_clip,
            window=window.tokens,
        )

    def _term(self, values: Tensor, mask: Tensor, window: Window) -> Tensor:
        divisor = window.tokens if self._settings.aggregate == "token" else window.answers
        return aggregated(values, mask, self._settings.aggregate, constant=self._constant, window=divisor)


def _within(mask: Tensor, values: Tensor) -> Tensor:
    """0 outside the mask, before any arithmetic: a NaN multiplied by 0 later still spoils the gradient."""
    return torch.where(mask, values, torch.zeros_like(values))


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
def evaluated_once(actor: Actor, episodes: EpisodeBatch, rows: Sequence[int] | None = None) -> EpisodeBatch:
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
    episodes: EpisodeBatch,
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
        pair_accuracy                      with loss dpo: of pairs, the better answer gained more over the
                                           reference (share)
        policy_loss, kl_loss, entropy_loss, value_loss   as they enter the sum, with their weights
        updates, skipped                   optimiser steps taken; refused as something was not finite

    Raises `ValueError` where the settings need something that episodes or actor do not have.
    """
    objective = PolicyObjective(
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


def join_tallies(
    processes: Processes, tally: Tally, sums: dict[str, float]
) -> tuple[Tally, dict[str, float]]:
    """Return the figures of all processes together, and each sum over all of them."""
    if processes.world == 1:
        return tally, sums
    whole, totals = Tally(), dict[str, float]()
    for other, partial in processes.gather_objects((tally.plain(), sums)):
        whole.join(other)
        _add(totals, partial)
    return whole, totals


class _Learner:
    """Takes the steps of minibatches and keeps the tally."""

    def __init__(
        self,
        actor: Actor,
        objective: PolicyObjective,
        episodes: EpisodeBatch,
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
        self._best: list[bool] = (credit.advantages > 0).any(-1).tolist()
        self.tally = Tally()
        self.steps = 0
        self.skipped = 0

    def learn(
        self, rows: list[int], step: Step, backward: Callable[[Tensor], None], check: Callable[[], None]
    ) -> bool:
        """Take the step of one minibatch; False where the policy has gone too far to take it."""
        rows = [row for row in rows if self._lengths[row]]
        teaches = self._teaches_values or self._objective.distils or any(self._teaches[row] for row in rows)
        if not rows or not teaches:
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
        tally, sums = join_tallies(self._share.processes, tally, sums)
        for name, total in sums.items():
            tally.add(name, total)
        return tally, all(map(math.isfinite, sums.values()))

    def _accumulate(
        self, rows: list[int], backward: Callable[[Tensor], None], check: Callable[[], None]
    ) -> tuple[Tally, dict[str, float]]:
        """Add this process's part of the gradient; its figures, and its part of each loss term."""
        window = Window(
            float(sum(self._lengths[row] for row in rows)),
            float(len(rows)),
            float(sum(self._best[row] for row in rows)),
        )
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


class OptimizerSteps:
    """Optimiser steps of one update."""

    def __init__(
        self,
        groups: Sequence[Sequence[nn.Parameter]],
        most: float,
        apply: Callable[[], None],
        sum_gradients: Callable[[list[nn.Parameter]], None],
    ) -> None:
        """sum_gradients: over the processes of the run."""
        self._groups = groups
        self._most = most
        self._apply = apply
        self._sum_gradients = sum_gradients
        self.taken = 0

    def __call__(self, finite: bool) -> OptimizerStep:
        """Clip, step where all is finite, and empty the gradient. The norm returned is the policy's."""
        self._sum_gradients([parameter for group in self._groups for parameter in group])
        norms = [float(clip_gradients(group, self._most)) for group in self._groups]
        finite = finite and all(map(math.isfinite, norms))
        if finite:
            self._apply()
            self.taken += 1
        for group in self._groups:
            for parameter in group:
                parameter.grad = None
        return OptimizerStep(norms[0], finite)


class Clock:
    """Duration of each part of a step, in seconds."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """Add the time since the last lap."""
        now = time.monotonic()
        self.laps[name] = round(self.laps.get(name, 0.0) + now - self._last, 3)
        self._last = now
