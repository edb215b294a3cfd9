"""Losses on samples: policy gradient and value, pure functions on tensors, in float32 at least.

All tensors are (batch, time) with a mask of the same shape, True on the tokens that the policy
drew; what lies outside it may hold anything, NaN included, and takes no gradient.

Gradient accumulation: a micro-batch does not know how many tokens or answers its window has.
Pass that as `window`, and the micro-batches' losses add up to the loss of the whole window.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from training.rlhf.kl import estimate

Aggregate = Literal["token", "sequence", "constant"]
Level = Literal["token", "sequence"]

# e^20 is beyond any clip; without a bound a ratio of ∞ meets an advantage of 0 and gives NaN.
_MOST_LOG_RATIO = 20.0


def policy_gradient(
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    aggregate: Aggregate = "token",
    constant: float | None = None,
    weight: Tensor | None = None,
    window: float | None = None,
    reduction: Literal["mean", "none"] = "mean",
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped policy gradient: −min(ρ A, clip(ρ, 1 − clip_low, 1 + clip_high) A) per token.

    ρ = exp(log π − log π_old), and only π takes a gradient. Returns the loss and `ratio_statistics`.

    logp, old_logp: log-probabilities of the drawn tokens under the sampler's temperature and
    filters. advantages: (batch, time), or (batch,) or (batch, 1) with one per answer. weight: (batch, time),
    or (batch,): what `importance_weights` gives for stale rollouts.

    With both clips infinite and π = π_old it is REINFORCE; equal clips are PPO's; a higher
    `clip_high` leaves unlikely tokens more room to grow (DAPO's "clip higher").

    - token: mean over all tokens, long answers weigh more. DAPO, Yu et al. 2025
    - sequence: mean over each answer's tokens, then over answers that have any. GRPO, Shao et al. 2024
    - constant: sum over each answer's tokens / `constant` (the longest answer allowed), then
      the mean over answers: no length is favoured. Dr. GRPO, Liu et al. 2025

    window: what to divide by in place of this batch's own count: tokens with "token", answers
    with the others. reduction="none": (batch, time), not aggregated. Schulman et al. 2017, equation 7.
    """
    if clip_low < 0 or clip_high < 0:
        raise ValueError(f"clip_low {clip_low} and clip_high {clip_high} must be at least 0")
    valid, logp, old_logp = _prepared(mask, logp, old_logp.detach())
    _, advantages = _prepared(mask, _per_token(advantages, valid).detach())
    ratio = (logp - old_logp).clamp(-_MOST_LOG_RATIO, _MOST_LOG_RATIO).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    free, bound = ratio * advantages, clipped * advantages
    values = -torch.minimum(free, bound)
    if weight is not None:
        values = values * _prepared(mask, _per_token(weight, valid).detach())[1]
    statistics = ratio_statistics(logp, old_logp, valid)
    # Where the clip binds the gradient is zero.
    statistics["clip_fraction"] = _mean(bound < free, valid).detach()
    statistics["clip_fraction_low"] = _mean((bound < free) & (ratio < 1), valid).detach()
    if reduction == "none":
        return values, statistics
    if reduction != "mean":
        raise ValueError(f"reduction {reduction!r} is not known; it is 'mean' or 'none'")
    return aggregated(values, valid, aggregate, constant=constant, window=window), statistics


def aggregated(
    values: Tensor,
    valid: Tensor,
    aggregate: Aggregate,
    *,
    constant: float | None = None,
    window: float | None = None,
) -> Tensor:
    """Return one loss from the losses of tokens, as `policy_gradient` says it.

    values: (batch, time), 0 outside `valid`, a bool mask of that shape.
    """
    if (constant is not None) != (aggregate == "constant"):
        raise ValueError("constant goes with aggregate='constant', and only with it")
    if aggregate == "token":
        return values.sum() / _divisor(valid.sum(), window)
    if aggregate == "sequence":
        lengths = valid.sum(-1)
        return (values.sum(-1) / lengths.clamp(min=1)).sum() / _divisor((lengths > 0).sum(), window)
    if constant is not None:
        if constant <= 0:
            raise ValueError(f"constant {constant} must be positive")
        return values.sum() / constant / (valid.shape[0] if window is None else window)
    raise ValueError(f"aggregate {aggregate!r} is not known; it is one of token, sequence, constant")


def ratio_statistics(logp: Tensor, old_logp: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Return statistics of ρ = π / π_old over the mask: scalars without gradient.

    ratio_mean, ratio_min, ratio_max, and `approximate_kl`, the k3 estimate of KL(π_old ‖ π)
    that early stopping looks at. An empty mask gives 1, 1, 1 and 0.
    """
    valid, logp, old_logp = _prepared(mask, logp.detach(), old_logp.detach())
    ratio = (logp - old_logp).clamp(-_MOST_LOG_RATIO, _MOST_LOG_RATIO).exp()
    none = ~valid.any()
    return {
        "ratio_mean": torch.where(none, 1.0, _mean(ratio, valid)),
        # Outside the mask both log-probabilities are 0 and the ratio 1, which may be neither extreme.
        "ratio_min": torch.where(none, 1.0, ratio.masked_fill(~valid, torch.inf).amin()),
        "ratio_max": torch.where(none, 1.0, ratio.masked_fill(~valid, -torch.inf).amax()),
        "approximate_kl": _mean(estimate(old_logp, logp, "k3"), valid),
    }


def value(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    clip: float | None,
    window: float | None = None,
    reduction: Literal["mean", "none"] = "mean",
) -> Tensor:
    """Clipped value loss: ½ max((V − R)², (V_clip − R)²), V_clip within `clip` of V_old.

    The larger of the two, so that a value which ran off is pulled back but not rewarded for
    running further. values, old_values, returns, mask: (batch, time). Returns the mean over the
    mask; `clip=None` does not clip; `window` is the number of tokens to divide by instead.
    Baselines' ppo2; Huang et al. 2022, detail 9.
    """
    valid, values, old_values, returns = _prepared(mask, values, old_values.detach(), returns.detach())
    error = (values - returns).square()
    if clip is not None:
        if clip < 0:
            raise ValueError(f"clip {clip} must be at least 0, or None")
        clipped = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (clipped - returns).square())
    if reduction == "none":
        return error / 2
    if reduction != "mean":
        raise ValueError(f"reduction {reduction!r} is not known; it is 'mean' or 'none'")
    return error.sum() / 2 / _divisor(valid.sum(), window)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """1 − Var(R − V) / Var(R) over the mask: 1 is a perfect value head, 0 no better than a constant.

    values, returns, mask: (batch, time). A scalar without gradient; NaN where the returns do not vary.
    """
    valid, values, returns = _prepared(mask, values.detach(), returns.detach())

    def variance(x: Tensor) -> Tensor:
        return _mean((x - _mean(x, valid)).square(), valid)

    spread = variance(returns)
    return torch.where(spread > 0, 1 - variance(returns - values) / spread, torch.nan)


def importance_weights(
    logp: Tensor, behaviour_logp: Tensor, mask: Tensor, *, truncate: float, level: Level = "token"
) -> Tensor:
    """Truncated importance weights min(π_old / μ, truncate), for rollouts that μ ≠ π_old drew.

    μ is whoever sampled: an older policy, or an engine that rounds differently. logp: log π_old
    as the trainer computes it before the first inner epoch; behaviour_logp: log μ as recorded;
    both (batch, time). level="sequence": one weight per answer, of the product over its tokens,
    at each of its tokens. Returns (batch, time), zeros outside the mask, without gradient.
    Ionides 2008; Yao et al. 2025 (truncated importance sampling).
    """
    if truncate <= 0:
        raise ValueError(f"truncate {truncate} must be positive")
    valid, logp, behaviour_logp = _prepared(mask, logp.detach(), behaviour_logp.detach())
    log_ratio = logp - behaviour_logp
    if level == "sequence":
        log_ratio = log_ratio.sum(-1, keepdim=True).expand_as(log_ratio)
    elif level != "token":
        raise ValueError(f"level {level!r} is not known; it is 'token' or 'sequence'")
    return torch.where(valid, log_ratio.exp().clamp(max=truncate), 0.0)


def entropy(logits: Tensor) -> Tensor:
    """Entropy −Σ π log π of each position, in nats: (…, vocabulary) -> (…).

    A token with logit −∞ (filtered away) adds nothing, to the value and to the gradient.
    """
    logp = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    return -(logp.exp() * logp.masked_fill(logp == -torch.inf, 0.0)).sum(-1)


def _prepared(mask: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    """Return the mask as booleans, then the values in float32 at least with zeros outside it."""
    valid = mask.bool()
    for x in values:
        if x.shape != valid.shape:
            raise ValueError(f"mask {tuple(valid.shape)} and values {tuple(x.shape)} must have one shape")
    wide = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in values]
    # Before any arithmetic: a NaN that is only multiplied by 0 later still spoils the gradient.
    return valid, *(torch.where(valid, x, torch.zeros_like(x)) for x in wide)


def _per_token(values: Tensor, valid: Tensor) -> Tensor:
    """Repeat one value per completion for each of its tokens."""
    if values.ndim == valid.ndim - 1:
        values = values.unsqueeze(-1)
    return values.expand_as(valid) if values.shape == (*valid.shape[:-1], 1) else values


def _mean(values: Tensor, valid: Tensor) -> Tensor:
    return torch.where(valid, values, 0.0).sum() / valid.sum().clamp(min=1)


def _divisor(count: Tensor, window: float | None) -> Tensor | float:
    """Return the divisor of a sum. A batch without a token gives a loss of 0, not NaN."""
    return count.clamp(min=1) if window is None else window
