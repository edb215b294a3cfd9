"""Items of a yardstick: a prompt, responses that are right, and responses that are wrong."""

from __future__ import annotations

from dataclasses import dataclass

from training.contract import Message


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """A prompt with its responses. A right one is to score above every wrong one it is compared with."""

    name: str
    """In messages, and the pair of RewardBench 2's ties."""
    subset: str
    prompt: tuple[Message, ...]
    chosen: tuple[str, ...]
    rejected: tuple[str, ...]

    @property
    def responses(self) -> tuple[str, ...]:
        """Return all responses, the right ones first."""
        return self.chosen + self.rejected
