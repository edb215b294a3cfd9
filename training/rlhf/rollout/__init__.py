"""Sampling: prompts in, K completions of each out, with the exact log-probability of every token."""

from training.rlhf.rollout.generate import Cancelled, Delta, OnDelta, Sample, TokenLogProb, rollout
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
