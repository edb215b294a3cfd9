"""Bootstrap resamples of judgments, one for each head of an ensemble."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from training.rlhf.measures.pair_figures import key_of

_RESAMPLE_STREAM = 2
"""Keeps the resamples apart from all else that is drawn from the run's seed."""


@functools.lru_cache(maxsize=1_000_000)
def times_drawn(judgment: str, head: int, seed: int) -> int:
    """Return a judgment's count in a head's resample: Poisson with mean 1, the bootstrap of a stream.

    It follows from the seed, the head and the judgment's id alone, so that nobody has to hold the whole
    snapshot, and a resumed run draws the same (Oza & Russell 2001).
    """
    generator = np.random.default_rng([seed, _RESAMPLE_STREAM, head, key_of(judgment)])
    return int(generator.poisson(1.0))


def resample(judgments: list[str], *, heads: int, seed: int) -> Tensor:
    """(heads, judgments) how often each head learns from each; float32."""
    return torch.tensor(
        [[float(times_drawn(judgment, head, seed)) for judgment in judgments] for head in range(heads)]
    )
