"""Episodes of a step, and their credit: how much better than expected each action was."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import NamedTuple, TypedDict

import torch
from torch import Tensor

from training.contract.methods.policy import AdvantageSettings, KlSettings
from training.rlhf.advantages import (
    BaselineState,
    RunningMeanBaseline,
    best_alone,
    best_and_worst,
    discounted_returns,
    gae,
    group_relative,
    leave_one_out,
    narrow_groups,
    tied_groups,
    whiten,
)
from training.rlhf.kl import (
    AdaptiveController,
    ControllerState,
    FixedController,
    estimate,
    sequence_sums,
)
from training.rlhf.losses import explained_variance

_COMPARISONS = {"leave_one_out": leave_one_out, "best_and_worst": best_and_worst, "best": best_alone}
"""Advantages of the answers to a prompt by the settings' name, but group_relative, which has settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeBatch:
    """B answers (or games), of T actions at most; answers to the same prompt lie together.

    What lies outside the mask may hold anything, NaN included.
    """

    mask: Tensor
    """(B, T) bool: the actions that the policy chose. Padding and other speakers' turns are False."""
    rewards: Tensor
    """(B, T) float32: what each action earned."""
    scored: Tensor
    """(B,) bool: False could not be scored. Such an answer takes no gradient and joins no baseline."""
    group: Tensor
    """(B,) int: the prompt that each belongs to. Equal numbers lie together."""
    old_logp: Tensor | None = None
    """(B, T) log π_old, by the trainer's own pass. None: the first pass of the update gives it."""
    behaviour_logp: Tensor | None = None
    """(B, T) log μ, as the sampler recorded it."""
    ref_logp: Tensor | None = None
    """(B, T) log π_ref."""
    trainer_logp: Tensor | None = None
    """(B, T) log π before the update, by the same passes as `ref_logp` and without filters: for the
    divergence that is reported."""
    base_logp: Tensor | None = None
    """(B, T) log-probabilities of the base, by the same passes."""
    old_values: Tensor | None = None
    """(B, T) what the value head expected before each action."""
    turns: Tensor | None = None
    """(B, T) int: the number of the turn that each action belongs to, from 0, in order and without gaps.
    None where an episode is one turn."""
    compared: Tensor | None = None
    """(B,) bool: answers that divergences are estimated from. None is all."""

    def __post_init__(self) -> None:
        for field in fields(self):
            tensor: Tensor | None = getattr(self, field.name)
            shape = self.mask.shape[:1] if field.name in ("scored", "group", "compared") else self.mask.shape
            if tensor is not None and tensor.shape != shape:
                raise ValueError(
                    f"{field.name} {tuple(tensor.shape)} must be {tuple(shape)}, as the mask demands"
                )
        if len(torch.unique(self.group)) != len(torch.unique_consecutive(self.group)):
            raise ValueError("group: answers to the same prompt must lie together")
        if not self.rewards[self.kept].isfinite().all():
            raise ValueError("rewards must be finite; an answer without a score is scored=False")

    @property
    def kept(self) -> Tensor:
        """(B, T) bool: the actions that are learned from, which are those of scored answers."""
        return self.mask.bool() & self.scored.bool().unsqueeze(-1)

    @property
    def drawn_logp(self) -> Tensor | None:
        """(B, T) log-probabilities under the policy that drew: the trainer's own, else the sampler's."""
        return self.behaviour_logp if self.old_logp is None else self.old_logp

    @property
    def groups(self) -> list[list[int]]:
        """Return rows of each prompt, in order."""
        sizes: list[int] = torch.unique_consecutive(self.group, return_counts=True)[1].tolist()
        return [rows.tolist() for rows in torch.split(torch.arange(len(self.group)), sizes)] if sizes else []


class Credit(NamedTuple):
    """Targets of an update, without gradient; 0 where nothing is learned."""

    advantages: Tensor
    """(B, T): how much better than expected each action was."""
    returns: Tensor | None
    """(B, T): what the value head should have said; None where there is none."""
    rewards: Tensor
    """(B, T): what each action earned, less the divergence where that has its place in the reward."""
    tied: Tensor
    """(G,) bool: prompts whose answers all earned the same. Held against each other, they teach nothing."""
    narrow: Tensor | None = None
    """(G,) bool: prompts whose answers differ by less than the floor of the deviation that divides their
    advantages; None where nothing does."""


class CreditState(TypedDict):
    """State kept between steps: plain numbers for a run's state file."""

    baseline: BaselineState
    controller: ControllerState


class CreditAssignment:
    """Rewards, less the divergence from the reference, held against what was to be expected.

    An answer's reward is the sum over its tokens where answers are compared (group_relative, leave_one_out,
    best_and_worst, best); all its tokens then have its advantage. Otherwise each token answers for the
    (discounted) rewards from it on: as they are (return), against the mean of all actions of earlier batches
    (running_mean), or against a value head (gae). Where divergence is paid for in the reward, it is part of
    all this.
    """

    def __init__(self, advantage: AdvantageSettings, kl: KlSettings, *, distils: bool = False) -> None:
        """distils: a token earns nothing but its divergence; scores are only reported."""
        self._advantage = advantage
        self._distils = distils
        self._kl = kl
        self._baseline = RunningMeanBaseline()
        self._controller: FixedController | AdaptiveController = (
            FixedController(kl.beta)
            if kl.target is None
            else AdaptiveController(kl.beta, kl.target, kl.horizon)
        )

    @property
    def beta(self) -> float:
        """Return the current KL penalty coefficient β; 0 without a penalty."""
        return 0.0 if self._kl.place == "none" else self._controller.beta

    def assign(self, episodes: EpisodeBatch) -> Credit:
        """Advantages of one batch, which then joins the running mean.

        An answer whose divergence is not finite gets NaN, for the update to refuse, and joins nothing.
        Raises `ValueError` where log-probabilities or values that the settings need are missing.
        """
        rewards = torch.where(episodes.kept, self._net_rewards(episodes), 0.0)
        lost = ~rewards.isfinite().all(-1)
        scored = episodes.kept & ~lost.unsqueeze(-1)
        scores = torch.where(scored, rewards, 0.0).sum(-1)
        scores = torch.where(episodes.scored.bool() & ~lost, scores, torch.nan)
        table = _by_group(scores, episodes.group)
        if self._advantage.unit == "turn":
            advantages, returns = self._expectation_of_turns(episodes, rewards, scored)
        else:
            advantages, returns = self._expectation(episodes, rewards, scored, table)
        if self._advantage.whiten:
            advantages = whiten(advantages, scored)
        advantages = advantages.masked_fill(episodes.kept & lost.unsqueeze(-1), torch.nan)
        return Credit(advantages, returns, rewards, tied_groups(table), self._narrow(table))

    def _narrow(self, table: Tensor) -> Tensor | None:
        if self._advantage.kind != "group_relative" or not self._advantage.scale:
            return None
        return narrow_groups(table, floor=self._advantage.deviation_floor)

    def _net_rewards(self, episodes: EpisodeBatch) -> Tensor:
        """Rewards less β times the divergence, where that has its place in the reward: (B, T)."""
        rewards = episodes.rewards.detach().float()
        if self._distils:
            rewards = torch.zeros_like(rewards)
        if self._kl.place != "reward":
            return rewards
        logp, reference = episodes.drawn_logp, episodes.ref_logp
        if logp is None or reference is None or self._kl.kind == "full":
            raise ValueError("divergence in the reward needs ref_logp, and old_logp or behaviour_logp")
        return rewards - self.beta * estimate(logp.detach(), reference.detach(), self._kl.kind)

    def _expectation(
        self, episodes: EpisodeBatch, rewards: Tensor, mask: Tensor, table: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Advantages before whitening, and what a value head should learn: (B, T) each."""
        kind, gamma = self._advantage.kind, self._advantage.gamma
        if kind == "gae":
            if episodes.old_values is None:
                raise ValueError("gae needs old_values: what the value head said before the update")
            return gae(rewards, episodes.old_values, mask, gamma=gamma, lam=self._advantage.lam)
        if kind in ("return", "running_mean"):
            returns = discounted_returns(rewards, mask, gamma=gamma)
            if kind == "return":
                return returns, None
            return self._baseline.advantages(returns.masked_fill(~mask, torch.nan)), None
        per_answer = self._compared(table)[_places(episodes.group)].unsqueeze(-1)
        return torch.where(mask, per_answer.to(rewards.dtype), 0.0), None

    def _expectation_of_turns(
        self, episodes: EpisodeBatch, rewards: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """The same with a turn as the action: each of its tokens has the turn's advantage and return.

        Where answers are compared, a turn is, by the discounted rewards from it on, with the same turn of the
        group's other episodes that have it.
        """
        if episodes.turns is None:
            raise ValueError("advantage unit 'turn' needs episodes with turns")
        actions = episodes.mask.bool()
        index = torch.where(actions, episodes.turns, 0)
        count = int(index.max()) + 1
        summed = rewards.new_zeros(len(rewards), count).scatter_add(1, index, torch.where(mask, rewards, 0.0))
        present = torch.zeros_like(summed).scatter_add(1, index, mask.to(summed.dtype)) > 0
        values: Tensor | None = None
        if episodes.old_values is not None:
            # A turn begins where its number is another than that of the action before.
            before = torch.cat([torch.full_like(index[:, :1], -1), index[:, :-1]], dim=1)
            begins = actions & (index != before)
            first = torch.where(begins, episodes.old_values, torch.zeros_like(episodes.old_values))
            values = torch.zeros_like(summed).scatter_add(1, index, first.to(summed.dtype))
        if self._advantage.kind in ("group_relative", "leave_one_out"):
            later = discounted_returns(summed, present, gamma=self._advantage.gamma)
            later = later.masked_fill(~present, torch.nan)
            compared = [
                self._compared(_by_group(column, episodes.group))[_places(episodes.group)]
                for column in later.unbind(1)
            ]
            advantages, returns = torch.stack(compared, dim=1), None
        else:
            collapsed = EpisodeBatch(
                mask=present,
                rewards=summed,
                scored=episodes.scored,
                group=episodes.group,
                old_values=values,
            )
            advantages, returns = self._expectation(collapsed, summed, present, summed)
        spread = [
            None if column is None else torch.where(mask, column.to(rewards.dtype).gather(1, index), 0.0)
            for column in (advantages, returns)
        ]
        assert spread[0] is not None  # noqa: S101 - for the type checker
        return spread[0], spread[1]

    def _compared(self, table: Tensor) -> Tensor:
        """Return the advantages of rewards (G, K) that are compared within each row."""
        if self._advantage.kind == "group_relative":
            settings = self._advantage
            return group_relative(table, scale=settings.scale, floor=settings.deviation_floor)
        return _COMPARISONS[self._advantage.kind](table)

    def observe(self, episodes: EpisodeBatch) -> None:
        """Move an adaptive β by what this batch's answers diverged, summed over each answer's tokens.

        Call it once a step, after `assign`. What could not be scored diverged all the same and counts.
        """
        divergence = _divergence_of_answers(episodes, episodes.ref_logp)
        if self._kl.place == "none" or divergence is None or not len(divergence):
            return
        mean = float(divergence.mean())
        # A divergence that is not finite comes with a loss that is not, and that step is skipped.
        if math.isfinite(mean):
            self._controller.update(mean, len(divergence))

    def state_dict(self) -> CreditState:
        """Return the running mean, and β."""
        return {"baseline": self._baseline.state_dict(), "controller": self._controller.state_dict()}

    def load_state_dict(self, state: CreditState) -> None:
        """Go on where `state_dict` was taken."""
        self._baseline.load_state_dict(state["baseline"])
        self._controller.load_state_dict(state["controller"])


def earned_the_same(episodes: EpisodeBatch) -> list[bool]:
    """Return of each prompt, in order, whether its answers all earned the same, divergence aside."""
    rewards = torch.where(episodes.kept, episodes.rewards, 0.0).sum(-1)
    scores = torch.where(episodes.scored.bool(), rewards, torch.nan)
    tied: list[bool] = tied_groups(_by_group(scores, episodes.group)).tolist()
    return tied


def figures(episodes: EpisodeBatch, credit: Credit) -> dict[str, float]:
    """Return the metrics of a step's samples before the update.

    tied                 share of prompts whose answers all earned the same
    below_floor          share of prompts whose answers earned not the same, but differ by less than the floor
                         of the deviation that their advantages are divided by
    unscored             share of answers that could not be scored
    kl, kl_per_token     divergence from the reference, k1: of an answer, and of a token
    kl_base, kl_base_per_token   divergence from the base
    explained_variance   how much of the returns the value head foresaw: 1 all, 0 no more than a constant

    What cannot be known (no reference, no value head, returns that do not vary) is left out.
    """
    result = {
        "tied": float(credit.tied.float().mean()),
        "unscored": float(1 - episodes.scored.float().mean()),
    }
    if credit.narrow is not None:
        result["below_floor"] = float(credit.narrow.float().mean())
    for name, other in (("kl", episodes.ref_logp), ("kl_base", episodes.base_logp)):
        divergence = _divergence_of_answers(episodes, other)
        if divergence is not None and len(divergence):
            result[name] = float(divergence.mean())
            result[f"{name}_per_token"] = float(divergence.sum() / episodes.mask.sum())
    if credit.returns is not None and episodes.old_values is not None:
        result["explained_variance"] = float(
            explained_variance(episodes.old_values, credit.returns, episodes.kept)
        )
    return {name: value for name, value in result.items() if math.isfinite(value)}


def _divergence_of_answers(episodes: EpisodeBatch, reference: Tensor | None) -> Tensor | None:
    """k1 summed over each answer that has an action, in double; None without a reference.

    By the trainer's own log-probabilities: the sampler's round otherwise, which is no divergence.
    """
    logp = episodes.drawn_logp if episodes.trainer_logp is None else episodes.trainer_logp
    if logp is None or reference is None:
        return None
    sums = sequence_sums(estimate(logp.detach().double(), reference.detach().double(), "k1"), episodes.mask)
    compared = episodes.mask.any(-1)
    return sums[compared if episodes.compared is None else compared & episodes.compared]


def _places(group: Tensor) -> tuple[Tensor, Tensor]:
    """Return row and column of each answer in a table with one row per prompt."""
    _, row, sizes = torch.unique_consecutive(group, return_inverse=True, return_counts=True)
    first = sizes.cumsum(0) - sizes
    return row, torch.arange(len(group), device=group.device) - first[row]


def _by_group(scores: Tensor, group: Tensor) -> Tensor:
    """(B,) to (G, K), K the answers of the prompt that has most; NaN where one has fewer."""
    row, column = _places(group)
    most = int(column.max()) + 1 if len(column) else 1
    table = scores.new_full((int(row.max()) + 1 if len(row) else 0, most), torch.nan)
    table[row, column] = scores
    return table
