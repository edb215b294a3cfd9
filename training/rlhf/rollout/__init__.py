"""Sampling: prompts in, K completions of each out, with the exact log-probability of every token."""

from training.rlhf.rollout.generate import rollout
from training.rlhf.sampling import SamplingParameters
