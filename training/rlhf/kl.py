"""KL divergence from the reference policy, and controllers of its coefficient.

The divergence is KL(π ‖ π_ref), seen through the tokens that π drew.
"""

from __future__ import annotations

import math
from typing import Literal, TypedDict

import torch
from torch import Tensor

KlKind = Literal["k1", "k2", "k3", "abs"]

K3_LIMIT = 5.0
"""Largest log (π_ref / π) that k3 is worked out from, in nats: k3 is then e⁵ − 6 = 142.4 at most."""

# Ziegler et al. 2019: the error is cut to ±20 %, so that no single batch moves β far.
_MOST_ERROR = 0.2
# A batch of several horizons could take β to 0 or below, from where no factor brings it back.
_LEAST_FACTOR = 0.1


def estimate(logp: Tensor, ref_logp: Tensor, kind: KlKind = "k1") -> Tensor:
    """Estimate of KL(π ‖ π_ref) from drawn tokens, one value per token, of the shape given.

    logp, ref_logp: log π and log π_ref of the tokens. With d = log π − log π_ref:

    - k1: d. Unbiased. For the reward: **as a loss its expected gradient is zero**, since
      E[∇ log π] = 0; it would only add noise.
    - k2: d² / 2. Biased; the expected gradient is that of the divergence.
    - k3: e^{−d} − 1 + d. Unbiased, never negative. e^{−d} explodes on a token that π finds far
      less likely than π_ref does, so −d is cut at `K3_LIMIT`; beyond it the value is
      constant and the gradient zero. Below it, as a loss, its gradient is that of KL(π_ref ‖ π).
    - abs: |d|.

    Schulman 2020, "Approximating KL divergence".
    """
    wide = torch.promote_types(logp.dtype, torch.float32)
    difference = logp.to(wide) - ref_logp.to(wide)
    if kind == "k1":
        return difference
    if kind == "k2":
        return difference.square() / 2
    if kind == "k3":
        log_ratio = (-difference).clamp(max=K3_LIMIT)
        return torch.expm1(log_ratio) - log_ratio
    if kind == "abs":
        return difference.abs()
    raise ValueError(f"kind {kind!r} is not known; it is one of k1, k2, k3, abs")


def full(logits: Tensor, ref_logits: Tensor) -> Tensor:
    """KL(π ‖ π_ref) of each position, summed over the whole vocabulary: no estimate.

    logits, ref_logits: (…, vocabulary). Returns (…). A token with logit −∞ (filtered away) in
    π adds nothing; one that only π_ref excludes makes the divergence infinite.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    logp, ref_logp = logits.to(wide).log_softmax(-1), ref_logits.to(wide).log_softmax(-1)
    impossible = logp == -torch.inf
    # Zeroed before the product: 0 · ∞ is NaN, in the value and in the gradient.
    difference = (logp - ref_logp).masked_fill(impossible, 0.0)
    return (logp.exp() * difference).sum(-1)


def sequence_sums(divergence: Tensor, mask: Tensor) -> Tensor:
    """Divergence of whole answers, which is what a controller's target speaks of.

    divergence, mask: (batch, time). Returns (batch,): sums over the mask, not means.
    """
    return torch.where(mask.bool(), divergence, torch.zeros_like(divergence)).sum(-1)


class ControllerState(TypedDict):
    """State of a controller: a plain number for a run's state file."""

    beta: float


class FixedController:
    """A coefficient β that stays."""

    def __init__(self, beta: float) -> None:
        _require_coefficient(beta)
        self.beta = beta

    def update(self, kl: float, n_steps: int) -> float:
        """β, whatever the divergence."""
        return self.beta

    def state_dict(self) -> ControllerState:
        """Return the coefficient."""
        return {"beta": self.beta}

    def load_state_dict(self, state: ControllerState) -> None:
        """Go on where `state_dict` was taken."""
        self.beta = float(state["beta"])


class AdaptiveController:
    """A coefficient β that steers the divergence of whole answers towards a target.

    e = clip(KL / target − 1, −0.2, 0.2) and β ← β (1 + e · n / horizon). Ziegler et al. 2019,
    section 2.2, in the form of their code. `target`: nats per **answer**, summed over its
    tokens; a mean per token would hold answers of a hundred tokens a hundred times tighter.
    `horizon`: answers over which an error of 20 % moves β by 20 %.
    """

    def __init__(self, beta: float, target: float, horizon: float) -> None:
        _require_coefficient(beta)
        if not target > 0 or not horizon > 0:
            raise ValueError(f"target {target} and horizon {horizon} must be positive")
        self.beta = beta
        self.target = target
        self.horizon = horizon

    def update(self, kl: float, n_steps: int) -> float:
        """Move β by one batch, and return it.

        kl: mean over the batch's answers of the divergence summed over each answer's tokens
        (`sequence_sums(estimate(…, "k1"), mask).mean()`). n_steps: answers in the batch. A `kl` that
        is not finite raises `ValueError`, as β would never recover from it.
        """
        kl = float(kl)
        if not math.isfinite(kl):
            raise ValueError(f"the divergence is {kl}; the coefficient stays at {self.beta}")
        error = min(max(kl / self.target - 1, -_MOST_ERROR), _MOST_ERROR)
        self.beta *= max(_LEAST_FACTOR, 1 + error * n_steps / self.horizon)
        return self.beta

    def state_dict(self) -> ControllerState:
        """Return the coefficient; target and horizon are settings, not state."""
        return {"beta": self.beta}

    def load_state_dict(self, state: ControllerState) -> None:
        """Go on where `state_dict` was taken."""
        self.beta = float(state["beta"])


def _require_coefficient(beta: float) -> None:
    if not (math.isfinite(beta) and beta >= 0):
        raise ValueError(f"beta {beta} must be a number of at least 0")
