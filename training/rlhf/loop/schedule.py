"""Examples and learning rate of each optimiser step: functions of the seed and the step alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from torch import nn
from torch.distributed.tensor import DTensor

from training.contract import OptimiserSettings


class _Long(Protocol):
    @property
    def tokens(self) -> int: ...


_Item = TypeVar("_Item", bound=_Long)

_ORDER_STREAM = 1
"""Keeps the order of examples apart from all else that is drawn from the run's seed."""
SCALAR_PACE = 100.0
"""Learning rate of scalar parameters over that of weights: thresholds, log odds of ties.

AdamW moves every number by about the learning rate. A head's output moves by that for each of its hundreds
of weights, so a scalar that is added to it or compared with it would hardly move in comparison."""


def steps_per_epoch(examples: int, settings: OptimiserSettings) -> int:
    """Optimiser steps of one pass. The last batch may be smaller; no example is left out."""
    return math.ceil(examples / settings.batch_size)


def steps_in_all(examples: int, settings: OptimiserSettings) -> int:
    """Optimiser steps of a run."""
    steps = settings.epochs * steps_per_epoch(examples, settings)
    return steps if settings.max_steps is None else min(steps, settings.max_steps)


def examples_of_step(
    examples: Sequence[_Item], step: int, *, seed: int, settings: OptimiserSettings
) -> list[_Item]:
    """The global batch of `step`, counted from 0. Every epoch visits every example once, in its own order.

    Within the batch the longest come first, so that every process gets about as many tokens.
    """
    epoch, place = divmod(step, steps_per_epoch(len(examples), settings))
    order = np.random.default_rng([seed, _ORDER_STREAM, epoch]).permutation(len(examples))
    chosen = order[place * settings.batch_size : (place + 1) * settings.batch_size].tolist()
    return [examples[index] for index in sorted(chosen, key=lambda index: (-examples[index].tokens, index))]


def learning_rate(step: int, total_steps: int, settings: OptimiserSettings) -> float:
    """Step size of `step`, counted from 0: a straight rise over the warm-up, then by the schedule."""
    if step < settings.warmup_steps:
        return settings.peak * (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.peak
    progress = (step - settings.warmup_steps) / max(1, total_steps - settings.warmup_steps)
    if settings.schedule == "linear":
        return settings.peak * (1 - progress)
    return settings.peak * 0.5 * (1 + math.cos(math.pi * progress))


def parameter_groups(
    parameters: Mapping[str, nn.Parameter], settings: OptimiserSettings
) -> list[dict[str, Any]]:
    """Return the trained parameters of `Backbone.parameters` as AdamW groups: weights; scalars of heads, at
    `SCALAR_PACE` times their learning rate and without decay, as 0 is no natural value for them; and the
    base's gains and biases, without decay."""
    weights = [value for value in parameters.values() if value.ndim > 1]
    flat = {name: value for name, value in parameters.items() if value.ndim == 1}
    scalars = [value for name, value in flat.items() if name.startswith("heads.")]
    gains = [value for name, value in flat.items() if not name.startswith("heads.")]
    groups = [{"params": weights, "pace": 1.0, "weight_decay": settings.weight_decay}]
    if scalars:
        groups.append({"params": scalars, "pace": SCALAR_PACE, "weight_decay": 0.0})
    if gains:
        groups.append({"params": gains, "pace": 1.0, "weight_decay": 0.0})
    return groups


def apart(groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the groups with what is cut over processes in groups of its own: AdamW takes no mixed ones."""
    parted = []
    for group in groups:
        whole = [value for value in group["params"] if not isinstance(value, DTensor)]
        cut = [value for value in group["params"] if isinstance(value, DTensor)]
        parted += [{**group, "params": some} for some in (whole, cut) if some]
    return parted
