"""Samples of a rollout with the log-probability of every token, whole or streamed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from training.rlhf.sampling import FinishReason


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLogProb:
    """One drawn token."""

    id: int
    log_prob: float
    """Log-probability that it was drawn by: after temperature, top-k and top-p."""
    model_log_prob: float | None = None
    """Log-probability by the model itself, of the tokens that the sample's grammar allows here where it has
    one; None unless `alternatives` asked for it."""
    alternatives: tuple[tuple[int, float], ...] = ()
    """The model's likeliest tokens here with their log-probabilities, the likeliest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One finished completion of one prompt."""

    tokens: tuple[TokenLogProb, ...]
    """All that was drawn: the end token is among them, and so is what a stop string cut off."""
    text: str
    """Without special tokens; ends before the stop string."""
    visible_tokens: int
    """Number of tokens, from the first, that have a part in the text."""
    finish_reason: FinishReason
    seed: int
    """Drawing one sample of the prompt with this seed gives this sample again."""

    @property
    def token_ids(self) -> list[int]:
        """Return the drawn ids."""
        return [token.id for token in self.tokens]


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """Text and tokens of one sample that became certain since its last delta."""

    prompt: int
    sample: int
    text: str
    tokens: tuple[TokenLogProb, ...]
    """Tokens with a part in the text given so far that no earlier delta held."""
    finished: Sample | None = None
    """The whole sample, with its last delta."""


OnDelta = Callable[[Delta], None]
Cancelled = Callable[[], bool]
