"""Log-probabilities of a prompt's tokens, as evaluations read them to score given texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from training.rlhf.model.attention import Layout, Segment
from training.rlhf.model.backbone import Backbone

_CHUNK = 128
"""Tokens whose logits are held at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptToken:
    """One token of a prompt."""

    id: int
    model_log_prob: float | None
    """Log-probability after the tokens before it; None for the first."""
    alternatives: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens here with their log-probabilities, the likeliest first."""


@torch.inference_mode()
def prompt_log_probabilities(
    backbone: Backbone, adapter: str | None, ids: Sequence[int], *, alternatives: int
) -> tuple[PromptToken, ...]:
    """Return the tokens of a prompt with their log-probabilities under `adapter`; None is the base."""
    device = backbone.device
    row = torch.tensor([list(ids)], device=device)
    with backbone.using(adapter):
        states = backbone.packed_states(
            row, torch.arange(len(ids), device=device)[None], Layout([Segment(0, len(ids))], device)
        )
        tokens = [PromptToken(id=ids[0], model_log_prob=None)]
        for chunk, targets in zip(
            torch.split(states[:-1], _CHUNK), torch.split(row[0, 1:], _CHUNK), strict=True
        ):
            logits = backbone.unknown_tokens.exclude(backbone.logits(chunk).float())
            log_probs = torch.log_softmax(logits, -1)
            values = log_probs.gather(-1, targets[:, None])[:, 0].tolist()
            best, best_ids = torch.topk(log_probs, alternatives, dim=-1)
            tokens += [
                PromptToken(id=id, model_log_prob=value, alternatives=tuple(zip(near_ids, near, strict=True)))
                for id, value, near_ids, near in zip(
                    targets.tolist(), values, best_ids.tolist(), best.tolist(), strict=True
                )
            ]
    return tuple(tokens)
