"""Keys and values of a rollout: each prompt's once for all its samples, each sample's own beside them.

A pass over the model is one packed row (`training.rlhf.model.attention`): prompts one after the other when
they are read, one token of each sample when samples are written. What a token sees of its prompt is one
product for all samples of that prompt; what it sees of its own sample is another. The two are put together
as one softmax over both, exactly: softmax over a union is the mean of the softmaxes over its parts, each
weighted by the sum of its exponentials (Milakov & Gimelshein 2018, §3; Dao et al. 2022, §3.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.rlhf.model.attention import Layout, Segment
from training.rlhf.model.segmented_attention import causal_mask

_GROWTH = 64
"""Own keys get room for so many more tokens at a time: growing copies them."""

_SMALL, _LARGEST_SHARE = 8192, 4
"""More places than `_SMALL`, and `_LARGEST_SHARE` times as many as are needed, are given back."""


class KeptLayer:
    """Keys and values of one attention layer, (prompts or rows, heads, tokens, width)."""

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
        self._layers: dict[int, KeptLayer] = {}

    def read(self, lengths: Sequence[int]) -> Layout:
        """Add prompts of these lengths; the layout of the packed row that holds them, one after the other."""
        first = len(self.prompt_lengths)
        self.prompt_lengths += lengths
        return _Reading(self, lengths, first)

    def read_on(self, prompt: int, length: int) -> Layout:
        """So many more tokens of a prompt that was read in part, no row behind it yet; their layout."""
        before = self.prompt_lengths[prompt]
        self.prompt_lengths[prompt] += length
        return _ReadingOn(self, prompt, before, length)

    def add_rows(self, prompts: Sequence[int]) -> None:
        """Add a row without tokens behind each of these prompts."""
        self.row_prompts += prompts
        self.row_lengths += [0] * len(prompts)

    def write(self, order: Sequence[int] | None = None) -> Layout:
        """Return the layout of the packed row that holds the next token of every row; then the row has it.

        order: the row that each token of the packed row belongs to, every row once; None is their own order.
        """
        self.row_lengths = [length + 1 for length in self.row_lengths]
        return _Writing(self, order)

    def wipe(self, *, rows: Sequence[int] = (), prompts: Sequence[int] = ()) -> None:
        """Overwrite what is kept of these with 0: a NaN would reach who takes their place, though hidden,
        because 0 times NaN is NaN."""
        for layer in self._layers.values():
            for tensor in layer.own:
                tensor[[row for row in rows if row < len(tensor)]] = 0
            for tensor in layer.prompts:
                tensor[list(prompts)] = 0

    def keep_rows(self, indices: Sequence[int]) -> list[int]:
        """Drop all rows but these. Returns which row each new number had before."""
        order = _without_holes(indices)
        # A row that was just added may have no place yet: it has no tokens to move.
        self._move([layer.own for layer in self._layers.values()], order, self.row_lengths)
        self.row_prompts = [self.row_prompts[row] for row in order]
        self.row_lengths = [self.row_lengths[row] for row in order]
        return order

    def keep_prompts(self, indices: Sequence[int]) -> list[int]:
        """Drop all prompts but these, which no row may stand behind. Returns which number each had before."""
        order = _without_holes(indices)
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
        for tensor in (tensor for layer in layers for tensor in layer):
            tensor[to, :, :width] = tensor[before, :, :width]

    def layer(self, module: nn.Module, key: Tensor) -> KeptLayer:
        """Return the cache of attention layer `module`."""
        index: int = module.layer_idx  # type: ignore[assignment]
        if index not in self._layers:
            self._layers[index] = KeptLayer(key)
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
            buffer = _roomy(layer.prompts[kind], len(self._cache.prompt_lengths), longest)
            for number, segment in enumerate(self.segments, self._first):
                buffer[number, :, : segment.length] = new[0, :, segment.start : segment.end]
            layer.prompts[kind] = buffer
        return super().attend(module, query, key, value, scaling)


class _ReadingOn(Layout):
    """The next tokens of one prompt: each sees what was read of the prompt before, and these up to itself."""

    def __init__(self, cache: KeyCache, prompt: int, before: int, length: int) -> None:
        super().__init__([Segment(0, length)], cache.device)
        self._cache = cache
        self._prompt = prompt
        self._before = before
        self._causal = causal_mask(before, length, cache.device)

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float | None
    ) -> Tensor:
        layer = self._cache.layer(module, key)
        count, longest = len(self._cache.prompt_lengths), max(self._cache.prompt_lengths)
        end = self._before + self.tokens
        seen: list[Tensor] = []
        for kind, new in enumerate((key, value)):
            buffer = _roomy(layer.prompts[kind], count, longest)
            buffer[self._prompt, :, self._before : end] = new[0]
            layer.prompts[kind] = buffer
            seen.append(buffer[self._prompt, :, :end].to(query.dtype)[None])
        mixed = F.scaled_dot_product_attention(
            query,
            seen[0],
            seen[1],
            attn_mask=self._causal,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return mixed.transpose(1, 2).contiguous()


class _Writing(Layout):
    """One token of every row in one packed row: each sees its prompt, what its row has kept, and itself."""

    def __init__(self, cache: KeyCache, order: Sequence[int] | None) -> None:
        super().__init__([Segment(row, 1) for row in range(len(cache.row_prompts))], cache.device)
        self._cache = cache
        self._order = None if order is None else torch.tensor(order, device=cache.device)
        self._by_row = None if self._order is None else self._order.argsort()
        """For each row the token of the packed row that is its own."""
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
            layer.own[kind][self._rows, :, self._last] = self._of_rows(new).to(layer.own[kind].dtype)
        heads, width = key.shape[1], key.shape[3]
        # Query heads that share a key head are so many queries of that head.
        asked = self._of_rows(query).reshape(len(self._rows), heads, -1, width).to(layer.own[0].dtype)
        asked = asked * (width**-0.5 if scaling is None else scaling)
        own_keys, own_values = (buffer[: len(self._rows), :, : self._width] for buffer in layer.own)
        parts = _part(asked, own_keys, own_values, self._own_hidden), self._over_prompts(layer, asked)
        mixed = _joined(*parts).to(query.dtype).reshape(len(self._rows), -1, width)
        return (mixed if self._order is None else mixed[self._order])[None]

    def _of_rows(self, tokens: Tensor) -> Tensor:
        """(1, heads, rows, width) of the packed row to (rows, heads, width) in the order of the rows."""
        turned = tokens[0].transpose(0, 1)
        return turned if self._by_row is None else turned[self._by_row]

    def _over_prompts(self, layer: KeptLayer, asked: Tensor) -> _Part:
        prompts, most = self._grid.shape
        longest = max(self._cache.prompt_lengths)
        keys, values = (tensor[:prompts, :, :longest] for tensor in layer.prompts)
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
    """Return the mask of missing tokens, (N, 1, 1, longest); None where all lengths are equal."""
    longest = max(lengths)
    if min(lengths) == longest:
        return None
    places = torch.arange(longest, device=device)
    return (places >= torch.tensor(lengths, device=device)[:, None])[:, None, None]


def _roomy(buffer: Tensor, count: int, width: int, step: int = 1) -> Tensor:
    """The same with room for `count` times `width` tokens, which are all that is still needed of it; what is
    new is 0, and so finite. Kept are, a half more aside, no more places than are needed."""
    places = buffer.shape[0] * buffer.shape[2]
    wasted = places > _SMALL and places > _LARGEST_SHARE * count * width
    if buffer.shape[0] >= count and buffer.shape[2] >= width and not wasted:
        return buffer
    # Where many join one after the other, not each of them has everything copied.
    more = buffer.shape[0] * 3 // 2 if 0 < buffer.shape[0] < count else count
    roomy = buffer.new_zeros(max(count, more), buffer.shape[1], -(-width // step) * step, buffer.shape[3])
    shared = slice(min(buffer.shape[0], count)), slice(None), slice(min(buffer.shape[2], width))
    roomy[shared] = buffer[shared]
    return roomy


def _without_holes(mask: Sequence[int]) -> list[int]:
    """An order of `mask` that moves as few as can be: the last ones fill the places of those dropped."""
    order = list(range(len(mask)))
    staying = {number for number in mask if number < len(mask)}
    holes = [number for number in order if number not in staying]
    for hole, moved in zip(holes, (number for number in mask if number >= len(mask)), strict=True):
        order[hole] = moved
    return order
