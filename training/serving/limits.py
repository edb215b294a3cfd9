"""Capacity limits of the model server. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds that the command line sets."""

    max_adapters: int = 8
    """Checkpoints in memory besides the base."""
    max_rows: int = 32
    """Answers that are written at a time; the others wait."""
    cache_tokens: int = 32768
    """Places for keys and values of prompts and answers, each as long as the longest running with it may
    become; the context's length at least. A place of SmolLM2-135M takes 46 KB in float32."""
    kept_tokens: int = 16384
    """Further places for what was read and written before, so that the next turn of a conversation reads
    only what is new."""
    queue: int = 32
    """Requests that may wait."""
    per_key: int = 64
    """Requests with one key that may wait and run."""
    seconds_per_request: float = 600.0
    """Default time limit of a request; it can ask for less, not for more."""
