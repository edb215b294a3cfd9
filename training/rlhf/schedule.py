"""What each optimiser step trains on and how far it goes: functions of the seed and the step alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from training.contract import OptimiserSettings
from training.rlhf.data import Example

_ORDER_STREAM = 1
"""Keeps the order of examples apart from all else that is drawn from the run's seed."""


def steps_per_epoch(examples: int, settings: OptimiserSettings) -> int:
    """Optimiser steps of one pass. The last batch may be smaller; no example is left out."""
    return math.ceil(examples / settings.batch_size)


def steps_in_all(examples: int, settings: OptimiserSettings) -> int:
    """Optimiser steps of a run."""
    steps = settings.epochs * steps_per_epoch(examples, settings)
    return steps if settings.max_steps is None else min(steps, settings.max_steps)


def examples_of_step(
    examples: Sequence[Example], step: int, *, seed: int, settings: OptimiserSettings
) -> list[Example]:
    """The global batch of `step`, counted from 0. Every epoch visits every example once, in its own order.

    Within the batch the longest come first, so that every process gets about as many tokens.
    """
    epoch, place = divmod(step, steps_per_epoch(len(examples), settings))
    order = np.random.default_rng([seed, _ORDER_STREAM, epoch]).permutation(len(examples))
    chosen = order[place * settings.batch_size : (place + 1) * settings.batch_size].tolist()
    return [examples[index] for index in sorted(chosen, key=lambda index: (-examples[index].tokens, index))]


def learning_rate(step: int, total_steps: int, settings: OptimiserSettings) -> float:
    """Step size of `step`, counted from 0: a straight rise over the warm-up, then half a cosine to 0."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    progress = (step - settings.warmup_steps) / max(1, total_steps - settings.warmup_steps)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
