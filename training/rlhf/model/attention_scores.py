"""Scores of attention: their scale, a sliding window and a soft cap, and attention with them.

Families of models differ in these three. A window ends what a token sees to so many tokens, itself among
them (Beltagy et al. 2020). A cap bends scores towards ± cap by cap · tanh(score / cap) (Gemma Team 2024, §2).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_QUERIES = 256
"""Queries at a time where scores are written out: their memory grows with those of them."""


_SMALL = 2**20
"""Masks of at most so many pairs of tokens are kept."""


class Scores(NamedTuple):
    """The way an attention layer scores keys."""

    scale: float | None = None
    """Factor of the products; None is 1 / √width."""
    window: int | None = None
    """Tokens that a token sees, itself and those before it; None is all."""
    cap: float | None = None
    """Bound of the scores; None is none."""

    def scaling(self, width: int) -> float:
        """Return the factor for queries of this width."""
        return float(width**-0.5) if self.scale is None else self.scale

    def narrows(self, keys: int) -> bool:
        """Return whether the last of so many tokens does not see all of them."""
        return self.window is not None and keys > self.window

    def capped(self, scores: Tensor) -> Tensor:
        """Return the scores under the cap."""
        return scores if self.cap is None else torch.tanh(scores / self.cap) * self.cap

    def bend_(self, scores: Tensor) -> Tensor | None:
        """Put scores under the cap where they lie; their derivative by what they were, None without a cap."""
        if self.cap is None:
            return None
        scores.div_(self.cap).tanh_()
        slope = 1 - scores.square()
        scores.mul_(self.cap)
        return slope


def causal_mask(before: int, length: int, device: torch.device, window: int | None = None) -> Tensor:
    """Return the causal mask of `length` tokens after `before` others: (length, before + length) booleans."""
    # Small ones are asked for again and again; large ones would fill the memory.
    make = _small_mask if length * (before + length) <= _SMALL else _causal_mask
    return make(before, length, device, window)


def _causal_mask(before: int, length: int, device: torch.device, window: int | None) -> Tensor:
    mask = torch.ones(length, before + length, dtype=torch.bool, device=device).tril(before)
    return mask if window is None else mask.triu(before - window + 1)


_small_mask = functools.lru_cache(maxsize=64)(_causal_mask)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scores: Scores) -> Tensor:
    """Attention of (N, heads, Q, width) queries over (N, key heads, K, width) keys and values.

    mask: (Q, K) or (N, 1, Q, K), True where a query sees a key; the window is in it. None: K is Q, and a
    token sees those before it and itself.
    """
    if scores.cap is not None:
        if mask is None:
            mask = causal_mask(0, query.shape[2], query.device)
        return _written_out(query, key, value, mask, scores)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scores.scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _written_out(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scores: Scores) -> Tensor:
    """Scaled dot-product attention has no place for a cap: scores are computed, some queries at a time."""
    count, heads, rows, width = query.shape
    groups = key.shape[1]
    # Heads that share keys lie together.
    grouped = query.reshape(count, groups, heads // groups, rows, width)
    keys, values = key.unsqueeze(2).transpose(-1, -2), value.unsqueeze(2)
    wide = mask if mask.ndim == 2 else mask.unsqueeze(1)
    mixed = []
    for first in range(0, rows, _QUERIES):
        block = slice(first, first + _QUERIES)
        products = (grouped[..., block, :] @ keys).float() * scores.scaling(width)
        # Padding may see nothing: it must stay a number.
        hidden = torch.finfo(products.dtype).min
        seen = scores.capped(products).masked_fill(~wide[..., block, :], hidden)
        mixed.append(seen.softmax(-1).to(values.dtype) @ values)
    return torch.cat(mixed, -2).reshape(count, heads, rows, value.shape[-1])
