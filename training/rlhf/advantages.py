"""From rewards to advantages: how much better than expected each token or each answer was.

Over time, tensors are (batch, time) with a mask of the same shape, True where a token was
chosen by the policy. Time is what the mask keeps: padding on either side, and holes in the
middle (another speaker's turn), are stepped over, give 0, and may hold anything, NaN included.
Over groups, rewards are (batch, K), the K answers to one prompt; NaN is an answer that could
not be scored.

Nothing here takes part in the gradient: all results are detached, in float32 at least.
"""

from __future__ import annotations

import math
from typing import TypedDict

import torch
from torch import Tensor

# Added to the variance where it divides: a batch of equal advantages becomes zeros, not NaN.
_VARIANCE_FLOOR = 1e-8
DEVIATION_FLOOR = 1e-4
"""Least deviation that a group's advantages are divided by, as large as what TRL adds to it."""
# Rewards of a group that lie this many rounding errors apart tie. Their standard deviation is
# rounding error too, and dividing by it would make advantages of ±1 out of nothing.
_TIE_ROUNDINGS = 8


def _prepared(mask: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    """Return the mask as booleans, then the values in float32 at least with zeros outside it."""
    valid = mask.bool()
    for value in values:
        if value.shape != valid.shape:
            raise ValueError(f"mask {tuple(valid.shape)} and values {tuple(value.shape)} must have one shape")
    wide = [value.detach().to(torch.promote_types(value.dtype, torch.float32)) for value in values]
    return valid, *(torch.where(valid, value, torch.zeros_like(value)) for value in wide)


def discounted_returns(rewards: Tensor, mask: Tensor, *, gamma: float) -> Tensor:
    """Return of every step: G_t = r_t + γ G_{t+1}, with 0 after the last.

    rewards, mask: (batch, time). Returns (batch, time). Sutton & Barto 2018, equation 3.9.
    """
    valid, rewards = _prepared(mask, rewards)
    returns = torch.zeros_like(rewards)
    later = rewards.new_zeros(rewards.shape[0])
    for step in reversed(range(rewards.shape[1])):
        later = torch.where(valid[:, step], rewards[:, step] + gamma * later, later)
        returns[:, step] = torch.where(valid[:, step], later, 0.0)
    return returns


def gae(rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation: δ_t = r_t + γ V_{t+1} − V_t, A_t = δ_t + γλ A_{t+1}.

    V and A after the last step are 0. rewards, values, mask: (batch, time). Returns the
    advantages and the returns A_t + V_t that the value head learns, (batch, time) each. The
    returns come from these advantages: whiten afterwards, and only the advantages.
    Schulman et al. 2016, equation 16.
    """
    valid, rewards, values = _prepared(mask, rewards, values)
    advantages = torch.zeros_like(rewards)
    later = rewards.new_zeros(rewards.shape[0])
    next_value = torch.zeros_like(later)
    for step in reversed(range(rewards.shape[1])):
        here = valid[:, step]
        delta = rewards[:, step] + gamma * next_value - values[:, step]
        later = torch.where(here, delta + gamma * lam * later, later)
        next_value = torch.where(here, values[:, step], next_value)
        advantages[:, step] = torch.where(here, later, 0.0)
    return advantages, advantages + values


def group_relative(rewards: Tensor, *, scale: bool = True, floor: float = DEVIATION_FLOOR) -> Tensor:
    """Return each completion's advantage over the others of its prompt: (r − mean) / max(std, floor).

    rewards: (batch, K); NaN is left out of mean and standard deviation and gets 0. The
    standard deviation is that of a sample (n − 1), as in TRL and verl. A group that ties, or
    has fewer than two scored answers, gets zeros. `scale=False` leaves the division out.
    floor: so that noise in the rewards does not become advantages of ±1. TRL adds as much to the
    deviation; here larger deviations stay exact.
    Shao et al. 2024, section 4.1.2; without the division Liu et al. 2025 (Dr. GRPO), section 3.
    """
    centred, deviation, _ = _centred_groups(rewards)
    if not scale:
        return centred
    divisor = deviation.clamp(min=floor)
    return torch.where(divisor > 0, centred / divisor, 0.0)


def narrow_groups(rewards: Tensor, *, floor: float) -> Tensor:
    """Return the prompts whose scored completions differ by less than noise: a standard deviation below
    `floor` that is not 0. (batch, K) -> (batch,) booleans."""
    _, deviation, tied = _centred_groups(rewards)
    return ~tied & (deviation.squeeze(-1) < floor)


def leave_one_out(rewards: Tensor) -> Tensor:
    """Return each answer against the mean of the others to its prompt: r_i − mean_{j ≠ i} r_j.

    rewards: (batch, K); NaN is left out and gets 0, and so does an answer that no other can be
    compared with. Equals n / (n − 1) times `group_relative(scale=False)`, n the number of
    scored answers. Kool et al. 2019; Ahmadian et al. 2024 (RLOO), equation 8.
    """
    centred, _, _ = _centred_groups(rewards)
    count = (~rewards.isnan()).sum(-1, keepdim=True)
    return centred * count / (count - 1).clamp(min=1)


def best_and_worst(rewards: Tensor) -> Tensor:
    """Return 1 for the best answer to each prompt, −1 for the worst, 0 for the others: (batch, K).

    rewards: (batch, K); NaN is left out. Of several that are best, or worst, the first is taken; a prompt
    whose answers tie gets 0. The pairs of best-of-k, as Guo et al. 2024 rank two by an annotator.
    """
    centred, _, tied = _centred_groups(rewards)
    scored = ~rewards.isnan()
    best = centred.masked_fill(~scored, -torch.inf).argmax(-1, keepdim=True)
    worst = centred.masked_fill(~scored, torch.inf).argmin(-1, keepdim=True)
    marks = torch.zeros_like(centred).scatter(-1, best, 1.0).scatter(-1, worst, -1.0)
    return marks.masked_fill(tied.unsqueeze(-1), 0.0)


def best_alone(rewards: Tensor) -> Tensor:
    """Return 1 for the best answer to each prompt and 0 for the others: (batch, K).

    As in `best_and_worst`. A policy gradient with these is supervised fine-tuning on the best of k samples:
    RAFT, Dong et al. 2023, algorithm 1; rejection sampling, Touvron et al. 2023, section 3.2.3.
    """
    return best_and_worst(rewards).clamp(min=0)


def tied_groups(rewards: Tensor) -> Tensor:
    """Return the prompts whose scored completions all tie: (batch, K) -> (batch,) booleans."""
    return _centred_groups(rewards)[2]


def _centred_groups(rewards: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards less their group's mean, (batch, K); standard deviation, (batch, 1); who ties, (batch,)."""
    if rewards.ndim != 2:
        raise ValueError(f"rewards {tuple(rewards.shape)} must be (batch, K), the K answers of each prompt")
    if rewards.isinf().any():
        raise ValueError("rewards must be finite, or NaN for an answer that could not be scored")
    scored, rewards = _prepared(~rewards.isnan(), rewards)
    count = scored.sum(-1, keepdim=True)
    mean = rewards.sum(-1, keepdim=True) / count.clamp(min=1)
    most = rewards.masked_fill(~scored, -torch.inf).amax(-1, keepdim=True)
    least = rewards.masked_fill(~scored, torch.inf).amin(-1, keepdim=True)
    rounding = _TIE_ROUNDINGS * torch.finfo(rewards.dtype).eps * rewards.abs().amax(-1, keepdim=True)
    # A group without a score has most − least = −∞.
    tied = most - least <= rounding
    centred = torch.where(scored & ~tied, rewards - mean, 0.0)
    deviation = (centred.square().sum(-1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
    return centred, deviation, tied.squeeze(-1)


def whiten(x: Tensor, mask: Tensor, *, shift_mean: bool = True) -> Tensor:
    """Scale to standard deviation 1 and, unless `shift_mean` is False, mean 0 over the mask.

    x, mask: one shape. Returns zeros outside the mask. The variance is that of a sample
    (n − 1), as in TRL and verl; where all values are equal the result is their mean (or 0).
    """
    valid, x = _prepared(mask, x)
    count = valid.sum()
    mean = x.sum() / count.clamp(min=1)
    centred = torch.where(valid, x - mean, 0.0)
    variance = centred.square().sum() / (count - 1).clamp(min=1)
    scaled = centred * torch.rsqrt(variance + _VARIANCE_FLOOR)
    return scaled if shift_mean else torch.where(valid, scaled + mean, 0.0)


class BaselineState(TypedDict):
    """State of a running mean: plain numbers for a run's state file."""

    mean: float
    count: int


class RunningMeanBaseline:
    """REINFORCE's oldest baseline: the mean of all rewards of earlier batches.

    Earlier ones only, so that it does not depend on the answer it is held against and the
    gradient stays unbiased. Williams 1992, section 4.
    """

    def __init__(self, *, decay: float | None = None) -> None:
        """`decay` in (0, 1) forgets: m ← decay · m + (1 − decay) · batch mean. None weighs all alike."""
        if decay is not None and not 0 < decay < 1:
            raise ValueError(f"decay {decay} must lie between 0 and 1, or be None")
        self._decay = decay
        self._mean = 0.0
        self._count = 0

    def advantages(self, rewards: Tensor) -> Tensor:
        """Rewards less the mean of the earlier batches (0 before the first), which they then join.

        rewards: any shape; NaN (could not be scored) gets 0 and does not join.
        """
        scored, values = _prepared(~rewards.isnan(), rewards)
        result = torch.where(scored, values - self._mean, 0.0)
        count = int(scored.sum())
        if count:
            self._join(float(values.double().sum()) / count, count)
        return result

    def _join(self, mean: float, count: int) -> None:
        if not math.isfinite(mean):
            raise ValueError("rewards must be finite, or NaN for an answer that could not be scored")
        self._count += count
        # The first batch has nothing to be mixed with.
        share = 1 - self._decay if self._decay and self._count > count else count / self._count
        self._mean += share * (mean - self._mean)

    def state_dict(self) -> BaselineState:
        """Mean and count."""
        return {"mean": self._mean, "count": self._count}

    def load_state_dict(self, state: BaselineState) -> None:
        """Go on where `state_dict` was taken."""
        self._mean, self._count = float(state["mean"]), int(state["count"])
