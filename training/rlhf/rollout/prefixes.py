"""Keys and values of what was read and written before, for prompts that begin with it.

A conversation's next turn begins with all earlier ones. What one adapter has read and written of them is not
read again (Zheng et al. 2024, SGLang, §3: RadixAttention; here a list of few sequences, the one used last at
its end).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Layers = Mapping[int, Sequence[Tensor]]
"""Keys and values by attention layer, (heads, tokens, width) each."""

_LEAST = 32
"""Tokens: to read fewer again costs as little as to copy their keys."""


@dataclass(frozen=True, slots=True)
class Known:
    """The beginning of a prompt whose keys and values are kept."""

    layers: Layers
    length: int
    """Tokens of the prompt that they cover; 0 for none."""


@dataclass(frozen=True, slots=True, eq=False)
class _Prefix:
    adapter: str | None
    ids: Tensor
    layers: Layers


class Prefixes:
    """Sequences of tokens by adapter with their keys and values; those used longest ago make place."""

    def __init__(self, *, most_tokens: int) -> None:
        """most_tokens: of all sequences together; 0 keeps nothing."""
        self.most_tokens = most_tokens
        self.tokens_reused = 0
        """Tokens of prompts that were not read again."""
        self._kept: list[_Prefix] = []

    @property
    def tokens(self) -> int:
        """Return the tokens of all sequences."""
        return sum(len(prefix.ids) for prefix in self._kept)

    def add(self, adapter: str | None, ids: Sequence[int], layers: Callable[[], Layers]) -> None:
        """Keep a sequence, and no longer those that it continues. layers: called if it is kept."""
        if not _LEAST <= len(ids) <= self.most_tokens:
            return
        new = torch.tensor(ids)
        shared = [_shared(prefix.ids, new) if prefix.adapter == adapter else 0 for prefix in self._kept]
        if len(new) in shared:
            return
        others = [
            prefix for prefix, length in zip(self._kept, shared, strict=True) if length < len(prefix.ids)
        ]
        self._kept = [*others, _Prefix(adapter, new, layers())]
        while self.tokens > self.most_tokens:
            self._kept.pop(0)

    def longest(self, adapter: str | None, prompt: Sequence[int]) -> Known:
        """Return the longest beginning of a prompt that is kept, its last token aside: that must be read, for
        the next one is drawn by its state."""
        ids = torch.tensor(prompt[:-1])
        lengths = [_shared(prefix.ids, ids) if prefix.adapter == adapter else 0 for prefix in self._kept]
        length = max(lengths, default=0)
        if length < _LEAST:
            return Known({}, 0)
        best = self._kept.pop(lengths.index(length))
        self._kept.append(best)
        self.tokens_reused += length
        return Known(best.layers, length)


def _shared(ids: Tensor, other: Tensor) -> int:
    """Return how many tokens two sequences begin with in common."""
    length = min(len(ids), len(other))
    different = (ids[:length] != other[:length]).nonzero()
    return int(different[0]) if len(different) else length
