"""Log-probabilities of answers under the active adapter, without logits for every token at once."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from training.rlhf.backbone import Backbone
from training.rlhf.packing import Batch

_CHUNK = 128
"""Tokens whose logits are held at a time: 128 × 49,152 × 4 bytes are 25 MB."""


class _Head(Protocol):
    def __call__(self, states: Tensor) -> Tensor: ...


def token_log_probabilities(states: Tensor, targets: Tensor, head: _Head) -> Tensor:
    """log softmax(head(states))[targets]: states (N, hidden), targets (N,), result (N,) float32.

    `head` must be frozen: gradients reach `states` only. A token's value depends on its own row
    of `states` alone, so value and derivative are both taken while a chunk's logits are there,
    and the logits are let go.
    """
    values, slopes = [], []
    for rows, wanted in zip(torch.split(states, _CHUNK), torch.split(targets, _CHUNK), strict=True):
        leaf = rows.detach().requires_grad_(states.requires_grad)
        logits = head(leaf).float()
        value = -F.cross_entropy(logits, wanted, reduction="none")
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
    # What several answers share is predicted once. A place is predicted from one other place alone.
    places, where = torch.unique(batch.targets, return_inverse=True)
    predictors = torch.empty_like(places).scatter_(0, where, batch.predictors)
    values = token_log_probabilities(states[predictors], batch.input_ids[0, places], backbone.logits)
    return values[where]
