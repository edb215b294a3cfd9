"""Sampling: prompts in, K completions of each out, with the exact log-probability of every token."""
