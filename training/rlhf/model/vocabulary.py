"""Ids of a model that its tokenizer does not have: makers pad a vocabulary to a round size.

Such an id has no text. Sampling never draws one, and a policy is the distribution over the others: the
log-probabilities that sampler and trainer compare leave them out alike. Supervised and preference losses,
whose texts hold none, are those of the whole vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class UnknownTokens:
    """The ids below `size` that a tokenizer does not have."""

    def __init__(self, tokenizer: Any, size: int) -> None:
        self.ids = frozenset(range(size)) - frozenset(tokenizer.get_vocab().values())
        self._end = size
        """From here on all ids are unknown."""
        while self._end and self._end - 1 in self.ids:
            self._end -= 1
        self._holes = torch.tensor(sorted(id for id in self.ids if id < self._end), dtype=torch.long)

    def exclude(self, logits: Tensor) -> Tensor:
        """Make the ids impossible in logits (…, vocabulary), in place; return the logits."""
        if self.ids:
            logits[..., self._end :] = -torch.inf
        if len(self._holes):
            self._holes = self._holes.to(logits.device)
            logits[..., self._holes] = -torch.inf
        return logits


class KnownTokensHead(nn.Module):
    """An output head without the ids that the tokenizer does not have."""

    def __init__(self, head: nn.Module, unknown: UnknownTokens) -> None:
        super().__init__()
        self._head, self._unknown = head, unknown

    def forward(self, states: Tensor) -> Tensor:
        """Return the head's logits, −∞ for such ids."""
        return self._unknown.exclude(self._head(states))
