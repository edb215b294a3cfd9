"""Sampling parameters and their bounds. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "cancelled"]
"""An end token or stop string; the bound on tokens or the context's end; the caller's wish."""

MAX_SEED = 2**63 - 1
MAX_ALTERNATIVES = 20
MAX_STOP_STRINGS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParameters:
    """Parameters of sampling and stopping. Raises `ValueError` naming the field."""

    temperature: float = 1.0
    """Logits are divided by this; 0 always takes the likeliest token."""
    top_p: float = 1.0
    """Only the likeliest tokens that together reach this probability can be drawn; 1 is off."""
    top_k: int = 0
    """Only this many likeliest tokens can be drawn; 0 is off. Comes before `top_p`."""
    max_tokens: int = 256
    """At most so many tokens; the context's end may come first."""
    stop: tuple[str, ...] = ()
    """The text ends before the first of these."""
    seed: int = 0
    """Sample i of a prompt is drawn with seed + i, so that it can be drawn again alone."""
    alternatives: int | None = None
    """Also give log-probabilities by the model itself, with so many of the likeliest tokens; None is off."""

    def __post_init__(self) -> None:
        _require(
            math.isfinite(self.temperature) and 0 <= self.temperature <= 100,
            "temperature",
            "must lie between 0 and 100",
        )
        _require(0 < self.top_p <= 1, "top_p", "must be above 0 and at most 1")
        _require(self.top_k >= 0, "top_k", "must be 0 (off) or more")
        _require(self.max_tokens >= 1, "max_tokens", "must be at least 1")
        _require(all(self.stop), "stop", "must not hold an empty string")
        _require(len(self.stop) <= MAX_STOP_STRINGS, "stop", f"must hold at most {MAX_STOP_STRINGS} strings")
        _require(0 <= self.seed <= MAX_SEED, "seed", f"must lie between 0 and {MAX_SEED}")
        if self.alternatives is not None:
            _require(
                0 <= self.alternatives <= MAX_ALTERNATIVES,
                "alternatives",
                f"must lie between 0 and {MAX_ALTERNATIVES}",
            )


def _require(condition: bool, field: str, remedy: str) -> None:
    if not condition:
        raise ValueError(f"{field} {remedy}")
