"""What model servers say, as the rest of Rondo reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """What the model server says of itself."""

    ready: bool
    message: str
    progress: float | None = None
    """Share of the loading that is done, 0 to 1, where that is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One completion as the model server gave it."""

    text: str
    finish_reason: str
    seed: int | None
    token_count: int | None
    prompt_tokens: int | None = None
    """How many tokens the server read, where it says so and one answer was asked for."""
    ignored: tuple[str, ...] = ()
    """What was asked for and the server does not know: it was left out, so it had no effect."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """The next piece of one streamed answer. The last one has no text but tells how the answer ended."""

    text: str = ""
    finish_reason: str | None = None
    token_count: int | None = None
    seed: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentScore:
    """What one head of a reward model says of one segment of an answer."""

    start: int
    end: int
    """[start, end) of the answer's text, in code points."""
    reward: float
    """Log-odds that the segment is faultless."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """All that a reward model says of the completions of one chat, in their order."""

    scores: tuple[float, ...]
    """The score of each completion, higher is better; empty where the model has no such head."""
    heads: Mapping[str, tuple[tuple[float, ...], ...]]
    """By head on whole answers: for each completion its outputs (the members of an ensemble, ratings)."""
    segments: Mapping[str, tuple[tuple[SegmentScore, ...], ...]]
    """By head on segments: for each completion its segments in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenKl:
    """How far a policy is from its reference at each token of an answer."""

    tokens: tuple[str, ...]
    kl: tuple[float, ...]
    """Per token log π − log π_ref: its mean over sampled answers estimates the KL divergence (k1)."""
    offsets: tuple[tuple[int, int], ...]
    """[start, end) of each token in the answer's text, in code points."""
