"""Log-probabilities of answers under the active adapter, without logits for every token at once."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from training.rlhf.model.backbone import Backbone
from training.rlhf.tokens.packing import Batch

_CHUNK = 128
"""Tokens whose logits are held at a time: 128 × 49,152 × 4 bytes are 25 MB."""
_TRAINED_CHUNK = 1024
"""The same where the head is trained too, whose gradient, as large as itself, each chunk adds to."""
_TRAINED_AT_ONCE = 2048
"""Up to so many tokens are not cut, and their logits kept for the backward pass: 400 MB, beside weights,
gradients and two moments of all parameters."""


class _Head(Protocol):
    def __call__(self, states: Tensor, /) -> Tensor: ...


def token_log_probabilities(states: Tensor, targets: Tensor, head: _Head) -> Tensor:
    """log softmax(head(states))[targets]: states (N, hidden), targets (N,), result (N,) float32.

    Gradients reach `states`, and the head where it is trained.
    """
    if torch.is_grad_enabled() and head(states[:1].detach()).requires_grad:
        return _under_a_trained_head(states, targets, head)
    return _under_a_frozen_head(states, targets, head)


def _under_a_trained_head(states: Tensor, targets: Tensor, head: _Head) -> Tensor:
    """Return log softmax(head(states))[targets] with gradients of the head.

    The head's own gradient depends on how a token's value is used, which only the backward pass knows: where
    the logits of all tokens are too many to be kept they are computed again there.
    """

    def chosen(states: Tensor, targets: Tensor) -> Tensor:
        value: Tensor = _Chosen.apply(head(states).float(), targets)  # type: ignore[no-untyped-call]
        return value

    if len(targets) <= _TRAINED_AT_ONCE:
        return chosen(states, targets)
    chunks = zip(torch.split(states, _TRAINED_CHUNK), torch.split(targets, _TRAINED_CHUNK), strict=True)
    return torch.cat([checkpoint(chosen, *chunk, use_reentrant=False) for chunk in chunks])


class _Chosen(torch.autograd.Function):
    """log softmax(logits)[targets], (N, vocabulary) and (N,) to (N,). The logits' own memory becomes the
    softmax, and in the backward pass their derivative: nobody else may read them."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        chosen = logits.gather(1, targets[:, None])[:, 0]
        total = logits.logsumexp(1)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(targets, logits.detach().sub_(total[:, None]).exp_())
        return chosen - total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        targets, softmax = ctx.saved_tensors
        # A second backward pass finds that they have changed, and is refused by autograd.
        slope = softmax.mul_(-gradients[0][:, None])
        return slope.scatter_add_(1, targets[:, None], gradients[0][:, None]), None


def _chosen(states: Tensor, targets: Tensor, head: _Head) -> Tensor:
    return -F.cross_entropy(head(states).float(), targets, reduction="none")


def _under_a_frozen_head(states: Tensor, targets: Tensor, head: _Head) -> Tensor:
    """Gradients reach `states` only. A token's value depends on its own row of `states` alone, so value and
    derivative are both taken while a chunk's logits are there, and the logits are let go."""
    values, slopes = [], []
    for rows, chunk_targets in zip(torch.split(states, _CHUNK), torch.split(targets, _CHUNK), strict=True):
        leaf = rows.detach().requires_grad_(states.requires_grad)
        value = _chosen(leaf, chunk_targets, head)
        if states.requires_grad:
            slopes.append(torch.autograd.grad(value.sum(), leaf)[0])
        values.append(value.detach())
    result = torch.cat(values)
    if states.requires_grad:
        # The difference is 0 and its derivative is 1: the value stays, the slope is attached.
        result = result + ((states - states.detach()) * torch.cat(slopes)).sum(-1)
    return result


def answer_log_probabilities(
    backbone: Backbone, adapter: str | None, batch: Batch, *, dropout: bool = False
) -> Tensor:
    """Sum of the log-probabilities of each answer's tokens: (R,) float32. None is the base."""
    values = answer_token_log_probabilities(backbone, adapter, batch, dropout=dropout)
    return values.new_zeros(batch.answers).index_add(0, batch.target_answer, values)


def answer_token_log_probabilities(
    backbone: Backbone, adapter: str | None, batch: Batch, *, dropout: bool = False
) -> Tensor:
    """Log-probability of every answer token, answer by answer: (A,) float32. None is the base."""
    with backbone.using(adapter, dropout=dropout):
        states = backbone.packed_states(batch.input_ids, batch.position_ids, batch.layout)
    # What several answers share is predicted once.
    targets, predictors, where = batch.predicted()
    values = token_log_probabilities(states[predictors], targets, backbone.lm_head(adapter))
    return values[where]
