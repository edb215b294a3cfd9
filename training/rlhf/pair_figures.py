"""Figures on decided pairs, the same for reward models and for the implicit rewards of a policy.

Every judgment counts once, however many pairs its ranking decides: a pair's share is its judgment's
weight of 1 divided by its pairs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from training.rlhf.data import Example
from training.rlhf.packing import Batch


def key_of(name: str) -> int:
    """A number for a name, the same in every process: judgments of one prompt have one."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


@torch.no_grad()
def pair_observations(batch: Batch, examples: Sequence[Example], rewards: Tensor) -> dict[str, Tensor]:
    """What `pair_figures` wants of a batch: (P,) each. rewards: (R,)."""
    chosen, rejected = rewards[batch.winners].detach(), rewards[batch.losers].detach()
    pairs = torch.bincount(batch.pair_example, minlength=batch.examples)
    lengths = batch.answer_tokens
    prompts = torch.tensor([key_of(example.prompt) for example in examples], device=rewards.device)
    return {
        "chosen": chosen,
        "rejected": rejected,
        "share": 1 / pairs[batch.pair_example].to(chosen.dtype),
        "longer": (lengths[batch.winners] - lengths[batch.losers]).to(chosen.dtype),
        "prompt": prompts[batch.pair_example],
    }


def pair_figures(observed: Mapping[str, Tensor], *, held_out: bool) -> dict[str, float]:
    """`accuracy`, `margin`, `log_loss`, `reward_chosen`, `reward_rejected`, `reward_mean`.

    accuracy: share of pairs ordered right, ½ where both are equal. margin: r⁺ − r⁻. log_loss:
    −log σ(r⁺ − r⁻). Nothing where there is no pair.
    """
    share = observed["share"].double()
    if not len(share):
        return {}
    chosen, rejected = observed["chosen"].double(), observed["rejected"].double()
    margin = chosen - rejected
    values = {
        "accuracy": (margin.sign() + 1) / 2,
        "margin": margin,
        "log_loss": -F.logsigmoid(margin),
        "reward_chosen": chosen,
        "reward_rejected": rejected,
        "reward_mean": (chosen + rejected) / 2,
    }
    return {name: float((share * value).sum() / share.sum()) for name, value in values.items()}
