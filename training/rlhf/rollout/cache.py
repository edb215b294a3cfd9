"""Keys and values of a rollout: each prompt's once for all its samples, each sample's own beside them.

A pass over the model is one packed row (see `training.rlhf.attention`): prompts one after the other when
they are read, one token of each sample when samples are written. What a token sees of its prompt is one
product for all samples of that prompt; what it sees of its own sample is another. The two are put together
as one softmax over both, exactly: softmax over a union is the mean of the softmaxes over its parts, each
weighted by the sum of its exponentials (Milakov & Gimelshein 2018, §3; Dao et al. 2022, §3.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from training.rlhf.attention import Layout, Segment

_GROWTH = 64
"""Own keys get room for so many more tokens at a time: growing copies them."""


class _Layer:
    """What one attention layer keeps; the first dimension counts prompts or rows, the third tokens."""

    def __init__(self, key: Tensor) -> None:
        # A CPU multiplies these small matrices faster in float32 than in any half precision.
        dtype = torch.float32 if key.device.type == "cpu" else key.dtype
        empty = key.new_empty(0, key.shape[1], 0, key.shape[3], dtype=dtype)
        self.prompts = [empty, empty]
        self.own = [empty, empty]


class _Part(NamedTuple):
    """A softmax over some of the keys, not yet divided by its sum."""

    mixed: Tensor
    """Values weighted by exp(score − top), (…, width)."""
    top: Tensor
    """The highest score, (…, 1)."""
    total: Tensor
    """The sum of the weights, (…, 1)."""


class KeyCache:
    """Prompts that were read and rows that are being written behind them, numbered as they were added."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.prompt_lengths: list[int] = []
        self.row_prompts: list[int] = []
        """For each row the number of its prompt."""
        self.row_lengths: list[int] = []
        """For each row how many of its tokens are kept."""
        self._layers: dict[int, _Layer] = {}

    def read(self, lengths: Sequence[int]) -> Layout:
        """Add prompts of these lengths; the layout of the packed row that holds them, one after the other."""
        first = len(self.prompt_lengths)
        self.prompt_lengths += lengths
        return _Reading(self, lengths, first)

    def add_rows(self, prompts: Sequence[int]) -> None:
        """Add a row without tokens behind each of these prompts."""
        self.row_prompts += prompts
        self.row_lengths += [0] * len(prompts)

    def write(self) -> Layout:
        """The layout of the packed row that holds the next token of every row; then the row has it."""
        self.row_lengths = [length + 1 for length in self.row_lengths]
        return _Writing(self)

    def keep_rows(self, kept: Sequence[int]) -> list[int]:
        """Drop all rows but these. Returns which row each new number had before."""
        order = _without_holes(kept)
        # A row that was just added may have no place yet: it has no tokens to move.
        self._move([layer.own for layer in self._layers.values()], order, self.row_lengths)
        self.row_prompts = [self.row_prompts[row] for row in order]
        self.row_lengths = [self.row_lengths[row] for row in order]
        return order

    def keep_prompts(self, kept: Sequence[int]) -> list[int]:
        """Drop all prompts but these, which no row may stand behind. Returns which number each had before."""
        order = _without_holes(kept)
        self._move([layer.prompts for layer in self._layers.values()], order, self.prompt_lengths)
        now = {before: number for number, before in enumerate(order)}
        self.prompt_lengths = [self.prompt_lengths[prompt] for prompt in order]
        self.row_prompts = [now[prompt] for prompt in self.row_prompts]
        return order

    def _move(self, layers: Iterable[list[Tensor]], order: Sequence[int], lengths: Sequence[int]) -> None:
        """In every layer, put what was at `order[i]` into place i, where it is not there already."""
        moved = [(to, before) for to, before in enumerate(order) if to != before and lengths[before]]
        if not moved:
            return
        width = max(lengths[before] for _, before in moved)
        to, before = torch.tensor(moved, device=self.device).unbind(1)
        for kept in (kept for layer in layers for kept in layer):
            kept[to, :, :width] = kept[before, :, :width]

    def layer(self, module: nn.Module, key: Tensor) -> _Layer:
        """What the attention layer `module` keeps."""
        index: int = module.layer_idx  # type: ignore[assignment]
        if index not in self._layers:
            self._layers[index] = _Layer(key)
        return self._layers[index]


class _Reading(Layout):
    """New prompts in one packed row: attention as in any packed row, and their keys and values are kept."""

    def __init__(self, cache: KeyCache, lengths: Sequence[int], first: int) -> None:
        ends = torch.tensor(lengths).cumsum(0).tolist()
        segments = [Segment(end - length, length) for end, length in zip(ends, lengths, strict=True)]
        super().__init__(segments, cache.device)
        self._cache = cache
        self._first = first

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float | None
    ) -> Tensor:
        layer = self._cache.layer(module, key)
        longest = max(self._cache.prompt_lengths)
        for kind, new in enumerate((key, value)):
            kept = _roomy(layer.prompts[kind], len(self._cache.prompt_lengths), longest)
            for number, segment in enumerate(self.segments, self._first):
                kept[number, :, : segment.length] = new[0, :, segment.start : segment.end]
            layer.prompts[kind] = kept
        return super().attend(module, query, key, value, scaling)


class _Writing(Layout):
    """One token of every row in one packed row: each sees its prompt, what its row has kept, and itself."""

    def __init__(self, cache: KeyCache) -> None:
        super().__init__([Segment(row, 1) for row in range(len(cache.row_prompts))], cache.device)
        self._cache = cache
        self._rows = torch.arange(len(cache.row_prompts), device=cache.device)
        self._last = torch.tensor(cache.row_lengths, device=cache.device) - 1
        self._width = max(cache.row_lengths)
        self._own_hidden = _hidden(cache.row_lengths, cache.device)
        self._prompt_hidden = _hidden(cache.prompt_lengths, cache.device)
        self._grid, self._places = self._arrange(cache)

    def _arrange(self, cache: KeyCache) -> tuple[Tensor, Tensor]:
        """Rows by prompt, (prompts, most rows of one), padded with row 0; and where in it each row is."""
        by_prompt: list[list[int]] = [[] for _ in cache.prompt_lengths]
        for row, prompt in enumerate(cache.row_prompts):
            by_prompt[prompt].append(row)
        most = max(map(len, by_prompt))
        grid = torch.tensor([rows + [0] * (most - len(rows)) for rows in by_prompt], device=cache.device)
        places = torch.empty_like(self._rows)
        for prompt, rows in enumerate(by_prompt):
            places[rows] = torch.arange(len(rows), device=cache.device) + prompt * most
        return grid, places

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float | None
    ) -> Tensor:
        layer = self._cache.layer(module, key)
        for kind, new in enumerate((key, value)):
            layer.own[kind] = _roomy(layer.own[kind], len(self._rows), self._width, _GROWTH)
            layer.own[kind][self._rows, :, self._last] = new[0].transpose(0, 1).to(layer.own[kind].dtype)
        heads, width = key.shape[1], key.shape[3]
        # Query heads that share a key head are so many queries of that head.
        asked = query[0].transpose(0, 1).reshape(len(self._rows), heads, -1, width).to(layer.own[0].dtype)
        asked = asked * (width**-0.5 if scaling is None else scaling)
        own_keys, own_values = (kept[: len(self._rows), :, : self._width] for kept in layer.own)
        parts = _part(asked, own_keys, own_values, self._own_hidden), self._over_prompts(layer, asked)
        return _joined(*parts).to(query.dtype).reshape(1, len(self._rows), -1, width)

    def _over_prompts(self, layer: _Layer, asked: Tensor) -> _Part:
        prompts, most = self._grid.shape
        longest = max(self._cache.prompt_lengths)
        keys, values = (kept[:prompts, :, :longest] for kept in layer.prompts)
        heads, queries = asked.shape[1:3]
        # (prompts, most, heads, queries, width) to (prompts, heads, most × queries, width)
        grouped = asked[self._grid].transpose(1, 2).reshape(prompts, heads, most * queries, -1)

        def of_rows(grouped: Tensor) -> Tensor:
            each = grouped.view(prompts, heads, most, queries, -1).transpose(1, 2)
            return each.reshape(prompts * most, heads, queries, -1)[self._places]

        return _Part(*map(of_rows, _part(grouped, keys, values, self._prompt_hidden)))


def _part(asked: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None) -> _Part:
    """asked (N, heads, queries, width) over keys and values (N, heads, tokens, width)."""
    scores = (asked @ keys.transpose(-1, -2)).float()
    if hidden is not None:
        scores = scores.masked_fill_(hidden, -torch.inf)
    top = scores.amax(-1, keepdim=True)
    weights = scores.sub_(top).exp_()
    return _Part((weights.to(values.dtype) @ values).float(), top, weights.sum(-1, keepdim=True))


def _joined(one: _Part, other: _Part) -> Tensor:
    top = torch.maximum(one.top, other.top)
    mine, theirs = (one.top - top).exp_(), (other.top - top).exp_()
    mixed = one.mixed * mine + other.mixed * theirs
    return mixed.div_(one.total * mine + other.total * theirs)


def _hidden(lengths: Sequence[int], device: torch.device) -> Tensor | None:
    """Where the shorter ones have no token, (N, 1, 1, longest); None where all are as long."""
    longest = max(lengths)
    if min(lengths) == longest:
        return None
    places = torch.arange(longest, device=device)
    return (places >= torch.tensor(lengths, device=device)[:, None])[:, None, None]


def _roomy(kept: Tensor, count: int, width: int, step: int = 1) -> Tensor:
    """The same with room for at least `count` times `width` tokens; what is new is 0, and so finite."""
    if kept.shape[0] >= count and kept.shape[2] >= width:
        return kept
    width = max(kept.shape[2], -(-width // step) * step)
    larger = kept.new_zeros(max(kept.shape[0], count), kept.shape[1], width, kept.shape[3])
    larger[: kept.shape[0], :, : kept.shape[2]] = kept
    return larger


def _without_holes(kept: Sequence[int]) -> list[int]:
    """An order of `kept` that moves as few as can be: the last ones fill the places of those dropped."""
    order = list(range(len(kept)))
    staying = {number for number in kept if number < len(kept)}
    holes = [number for number in order if number not in staying]
    for hole, moved in zip(holes, (number for number in kept if number >= len(kept)), strict=True):
        order[hole] = moved
    return order
