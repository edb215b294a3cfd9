"""Distribution of drawn tokens under the sampler's temperature and filters, in chunks.

With temperature τ, the policy is softmax(logits / τ), cut to the tokens that top-k and top-p leave and
normalised again, just as it was sampled from. The drawn token is always among them: once the policy has
moved, its own filter might leave it out, and its probability would be 0 for good.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from training.rlhf.kl import full
from training.rlhf.losses.policy import entropy as entropy_of
from training.rlhf.rollout.distribution import sampling_log_probs
from training.rlhf.sampling import SamplingParameters

_CHUNK = 512
"""Tokens whose logits are held at a time: 512 × 49,152 × 4 bytes are 100 MB, a few times over."""

Head = Callable[[Tensor], Tensor]
"""States (N, hidden) to logits (N, vocabulary)."""


class TokenFigures(NamedTuple):
    """Figures of each drawn token, (N,) float32 each; None where not requested."""

    logp: Tensor
    """log π of the token."""
    entropy: Tensor | None
    """−Σ π log π, in nats."""
    full_kl: Tensor | None
    """KL(π ‖ π_ref) over the whole vocabulary, in nats. π_ref has the temperature and no filter: what the
    filters cut from π counts as distance."""


def token_figures(
    states: Tensor,
    targets: Tensor,
    head: Head,
    parameters: SamplingParameters,
    *,
    entropy: bool = False,
    reference: tuple[Tensor, Head] | None = None,
) -> TokenFigures:
    """log π of the `targets` and, if wished, entropy and divergence, with gradient to states and head.

    states (N, hidden), targets (N,). reference: states (N, hidden) and head of π_ref, without gradient.
    The logits of a chunk are let go and computed again in the backward pass.
    """
    chunks: list[tuple[Tensor, ...]] = []
    for start in range(0, len(targets), _CHUNK):
        part = slice(start, start + _CHUNK)
        ref_states, ref_head = (None, head) if reference is None else (reference[0][part], reference[1])

        def chunk(
            rows: Tensor,
            chunk_targets: Tensor = targets[part],
            ref_rows: Tensor | None = ref_states,
            ref_head: Head = ref_head,
        ) -> tuple[Tensor, ...]:
            logits = _filtered(head(rows).float(), chunk_targets, parameters)
            values = [-F.cross_entropy(logits, chunk_targets, reduction="none")]
            if entropy:
                values.append(entropy_of(logits))
            if ref_rows is not None:
                with torch.no_grad():
                    ref_logits = ref_head(ref_rows).float() / _divisor(parameters)
                values.append(full(logits, ref_logits))
            return tuple(values)

        rows = states[part]
        again = torch.is_grad_enabled() and rows.requires_grad
        chunks.append(checkpoint(chunk, rows, use_reentrant=False) if again else chunk(rows))
    columns = [torch.cat(column) for column in zip(*chunks, strict=True)]
    logp, *rest = columns
    return TokenFigures(
        logp, rest[0] if entropy else None, rest[-1] if reference is not None and rest else None
    )


def _filtered(logits: Tensor, targets: Tensor, parameters: SamplingParameters) -> Tensor:
    """Logits / τ with −∞ where the sampler's filters leave no token."""
    scaled = logits / _divisor(parameters)
    if not parameters.top_k and parameters.top_p == 1:
        return scaled
    with torch.no_grad():
        allowed = sampling_log_probs(logits, parameters) > -torch.inf
        allowed.scatter_(1, targets[:, None], True)
    return scaled.masked_fill(~allowed, -torch.inf)


def _divisor(parameters: SamplingParameters) -> float:
    # Greedy answers are looked at under the model's own distribution: that of temperature 0 says nothing.
    return parameters.temperature or 1.0
