"""Results of model servers, as values for the rest of Rondo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseState:
    """The state of a base model on the model server."""

    name: str
    state: str
    """`ready`, `asleep`, `failed`, or on its way."""
    message: str
    memory_bytes: int
    waiting: int
    """Requests that have not begun."""
    in_flight: int
    """Requests that it has, waiting or in progress."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """The state of a model server."""

    ready: bool
    message: str
    progress: float | None = None
    """Share of the loading that is done, 0 to 1, if known."""
    bases: tuple[BaseState, ...] = ()
    """Of each base model; none where the server has one alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A completion from the model server."""

    text: str
    finish_reason: str
    seed: int | None
    token_count: int | None
    prompt_tokens: int | None = None
    """Number of tokens in the prompt, if the server reports it and one answer was requested."""
    ignored: tuple[str, ...] = ()
    """Request fields that the server does not know; they had no effect."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """The next piece of a streamed answer. The last has no text but the finish reason."""

    text: str = ""
    finish_reason: str | None = None
    token_count: int | None = None
    seed: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentScore:
    """The score of one segment of an answer by one head of a reward model."""

    start: int
    end: int
    """[start, end) of the answer's text, in code points."""
    reward: float
    """Log-odds that the segment is faultless."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """All scores of a reward model for the completions of one chat, in their order."""

    scores: tuple[float, ...]
    """The score of each completion, higher is better; empty where the model has no such head."""
    heads: Mapping[str, tuple[tuple[float, ...], ...]]
    """By head on whole answers: for each completion its outputs (the members of an ensemble, ratings)."""
    segments: Mapping[str, tuple[tuple[SegmentScore, ...], ...]]
    """By head on segments: for each completion its segments in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenKl:
    """The divergence of a policy from its reference at each token of an answer."""

    tokens: tuple[str, ...]
    kl: tuple[float, ...]
    """Per token log π − log π_ref: its mean over sampled answers estimates the KL divergence (k1)."""
    offsets: tuple[tuple[int, int], ...]
    """[start, end) of each token in the answer's text, in code points."""
