"""Sampling: prompts in, K completions of each out, with the exact log-probability of every token."""

from training.rlhf.rollout.generate import rollout
from training.rlhf.rollout.samples import Cancelled, Delta, OnDelta, Sample, TokenLogProb
from training.rlhf.sampling import FinishReason, SamplingParameters

__all__ = [
    "Cancelled",
    "Delta",
    "FinishReason",
    "OnDelta",
    "Sample",
    "SamplingParameters",
    "TokenLogProb",
    "rollout",
]
