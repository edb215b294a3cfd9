"""Log-probabilities of answers under the active adapter, without logits for every token at once."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from training.rlhf.backbone import Backbone
from training.rlhf.data import Batch

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
    """Sum of the log-probabilities of each row's answer tokens: (R,) float32. None is the base."""
    with backbone.using(adapter, dropout=dropout):
        states = backbone.hidden_states(batch.input_ids, batch.attention_mask).states
    # The state before a token predicts it: shift by one, then keep the answer's places only.
    wanted = batch.answer_mask[:, 1:]
    rows = wanted.nonzero()[:, 0]
    values = token_log_probabilities(states[:, :-1][wanted], batch.input_ids[:, 1:][wanted], backbone.logits)
    return values.new_zeros(len(states)).index_add(0, rows, values)
