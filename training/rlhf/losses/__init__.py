"""Losses on preferences and on samples: pure functions on tensors, in float32 at least."""

from training.rlhf.losses.policy import policy_gradient, value
from training.rlhf.losses.preference import (
    MOST_COMPLETIONS,
    NOT_ORDERED,
    DpoLoss,
    Reduction,
    Ties,
    bradley_terry,
    davidson,
    dpo,
    dpo_plackett_luce,
    kto,
    plackett_luce,
    register_dpo_loss,
)

__all__ = [
    "MOST_COMPLETIONS",
    "NOT_ORDERED",
    "DpoLoss",
    "Reduction",
    "Ties",
    "bradley_terry",
    "davidson",
    "dpo",
    "dpo_plackett_luce",
    "kto",
    "plackett_luce",
    "policy_gradient",
    "register_dpo_loss",
    "value",
]
