"""Figures on examples that are not trained on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from training.rlhf.data import Example, collate
from training.rlhf.methods import TrainingMethod
from training.rlhf.processes import Processes
from training.rlhf.schedule import micro_batches

_Z_95 = 1.959963984540054
"""Two-sided 95 % point of the standard normal distribution."""


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """95 % score interval of a share found in `count` trials (Wilson 1927)."""
    denominator = 1 + _Z_95**2 / count
    centre = (share + _Z_95**2 / (2 * count)) / denominator
    half = _Z_95 / denominator * math.sqrt(share * (1 - share) / count + _Z_95**2 / (4 * count**2))
    return max(0.0, centre - half), min(1.0, centre + half)


@torch.no_grad()
def evaluate(
    method: TrainingMethod,
    examples: Sequence[Example],
    *,
    micro_batch_size: int,
    pad_id: int,
    device: torch.device,
    processes: Processes,
    check: Callable[[], None],
) -> dict[str, float]:
    """Mean loss and statistics over `examples`, every judgment counted once; nothing for none.

    Named `held_out_…`. The 95 % interval of the accuracy takes the judgments, not their pairs, as
    trials: the pairs of one ranking are not independent. `check` is called before every forward pass.
    """
    if not examples:
        return {}
    names = ("loss", *method.reported)
    sums = torch.zeros(len(names), dtype=torch.float64)
    by_length = sorted(examples, key=lambda example: -example.tokens)
    for group in micro_batches(by_length, micro_batch_size, rank=processes.rank, world=processes.world):
        check()
        batch = collate(group, pad_id=pad_id, device=device)
        losses = method.losses(batch, group, dropout=False)
        values = {"loss": losses.loss, **losses.statistics}
        sums += torch.stack([values[name].double().sum().cpu() for name in names])
    means = (processes.sum(sums) / len(examples)).tolist()
    found = {f"held_out_{name}": value for name, value in zip(names, means, strict=True)}
    low, high = wilson_interval(min(1.0, max(0.0, found["held_out_accuracy"])), len(examples))
    return {
        **found,
        "held_out_accuracy_low": low,
        "held_out_accuracy_high": high,
        "held_out_judgments": float(len(examples)),
    }
