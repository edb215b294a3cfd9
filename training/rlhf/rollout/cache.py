"""Keys and values of a rollout: each prompt's once for all its samples, each sample's own beside them.

A pass over the model is one packed row (`training.rlhf.model.attention`): prompts one after the other when
they are read, one token of each sample when samples are written. What a token sees of its prompt is one
product for all samples of that prompt; what it sees of its own sample is another. The two are put together
as one softmax over both, exactly: softmax over a union is the mean of the softmaxes over its parts, each
weighted by the sum of its exponentials (Milakov & Gimelshein 2018, §3; Dao et al. 2022, §3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from training.rlhf.model.attention import Layout, Segment
from training.rlhf.model.segmented_attention import AttentionScores, attend, segment_mask

# ── Keys and values of what was read and written before, for prompts that begin with it ──
#
# A conversation's next turn begins with all earlier ones. What one adapter has read and written of them is
# not read again (Zheng et al. 2024, SGLang, §3: RadixAttention; here a list of few sequences, the one used
# last at its end).

Layers = Mapping[int, Sequence[Tensor]]
"""Keys and values by attention layer, (heads, tokens, width) each."""

_LEAST = 32
"""Tokens: to read fewer again costs as little as to copy their keys."""


@dataclass(frozen=True, slots=True)
class CachedPrefix:
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

    def longest(self, adapter: str | None, prompt: Sequence[int]) -> CachedPrefix:
        """Return the longest beginning of a prompt that is kept, its last token aside: that must be read, for
        the next one is drawn by its state."""
        ids = torch.tensor(prompt[:-1])
        lengths = [_shared(prefix.ids, ids) if prefix.adapter == adapter else 0 for prefix in self._kept]
        length = max(lengths, default=0)
        if length < _LEAST:
            return CachedPrefix({}, 0)
        best = self._kept.pop(lengths.index(length))
        self._kept.append(best)
        self.tokens_reused += length
        return CachedPrefix(best.layers, length)


def _shared(ids: Tensor, other: Tensor) -> int:
    """Return how many tokens two sequences begin with in common."""
    length = min(len(ids), len(other))
    different = (ids[:length] != other[:length]).nonzero()
    return int(different[0]) if len(different) else length


_GROWTH = 64
"""Own keys get room for so many more tokens at a time: growing copies them."""

_SMALL, _LARGEST_SHARE = 8192, 4
"""More places than `_SMALL`, and `_LARGEST_SHARE` times as many as are needed, are given back."""


class KeptLayer:
    """Keys and values of one attention layer, (prompts or rows, heads, tokens, width)."""

    def __init__(self, key: Tensor, value: Tensor) -> None:
        # A CPU multiplies these small matrices faster in float32 than in any half precision.
        dtype = torch.float32 if key.device.type == "cpu" else key.dtype
        self.prompts, self.own = (
            [tensor.new_empty(0, tensor.shape[1], 0, tensor.shape[3], dtype=dtype) for tensor in (key, value)]
            for _ in range(2)
        )


class _PartialSoftmax(NamedTuple):
    """A softmax over some of the keys, not yet divided by its sum."""

    mixed: Tensor
    """Values weighted by exp(score − top), (…, width)."""
    top: Tensor
    """The highest score, (…, 1)."""
    total: Tensor
    """The sum of the weights, (…, 1)."""


class _View(NamedTuple):
    """The places that rows being written attend to."""

    own_first: int
    """The first place of the rows that any of them sees."""
    prompt_first: int
    """The first place of the prompts that any row sees."""
    own_hidden: Tensor | None
    """(rows, 1, 1, places) what a row does not see of itself from there on; None hides nothing."""
    prompt_hidden: Tensor | None
    """(prompts, 1, 1 or most rows of one, places) what rows do not see of their prompt from there on."""


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

    def add_prompt(self, prefix: Mapping[int, Sequence[Tensor]] | None = None, length: int = 0) -> int:
        """Add a prompt of which nothing is read; its number.

        prefix: keys and values by layer, as `copied` gives them, of which the first `length` tokens are those
        of the prompt and need not be read.
        """
        number = len(self.prompt_lengths)
        self.prompt_lengths.append(length)
        for index, tensors in (prefix or {}).items() if length else ():
            layer = self._layers.setdefault(index, KeptLayer(*(tensor[None] for tensor in tensors)))
            for kind, tensor in enumerate(tensors):
                buffer = _roomy(layer.prompts[kind], number + 1, max(self.prompt_lengths))
                buffer[number, :, :length] = tensor[:, :length]
                layer.prompts[kind] = buffer
        return number

    def read(self, pieces: Sequence[tuple[int, int]]) -> Layout:
        """Read so many more tokens of each of these prompts, no row behind them yet: (prompt, tokens) each.

        Returns the layout of the packed row that holds the pieces, one after the other.
        """
        before = [self.prompt_lengths[prompt] for prompt, _ in pieces]
        for prompt, length in pieces:
            self.prompt_lengths[prompt] += length
        return _Reading(self, pieces, before)

    def copied(self, row: int) -> dict[int, tuple[Tensor, Tensor]]:
        """Return keys and values of a row's prompt and of its own tokens behind it, by layer, (heads, tokens,
        width)."""
        prompt, length = self.row_prompts[row], self.row_lengths[row]
        before = self.prompt_lengths[prompt]

        def joined(layer: KeptLayer, kind: int) -> Tensor:
            parts = [layer.prompts[kind][prompt, :, :before]]
            # A row that has just begun may have no place of its own yet.
            parts += [layer.own[kind][row, :, :length]] if length else []
            return torch.cat(parts, 1)

        return {index: (joined(layer, 0), joined(layer, 1)) for index, layer in self._layers.items()}

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

    def layer(self, module: nn.Module, key: Tensor, value: Tensor) -> KeptLayer:
        """Return the cache of attention layer `module`."""
        index: int = module.layer_idx  # type: ignore[assignment]
        if index not in self._layers:
            self._layers[index] = KeptLayer(key, value)
        return self._layers[index]


class _Reading(Layout):
    """Pieces of prompts in one packed row, whose keys and values are kept. A token sees what was read of its
    prompt before, and its piece up to itself."""

    def __init__(self, cache: KeyCache, pieces: Sequence[tuple[int, int]], before: Sequence[int]) -> None:
        lengths = [length for _, length in pieces]
        ends = torch.tensor(lengths).cumsum(0).tolist()
        segments = [Segment(end - length, length) for end, length in zip(ends, lengths, strict=True)]
        super().__init__(segments, cache.device)
        self._cache = cache
        self._prompts = [prompt for prompt, _ in pieces]
        self._before = before
        self._parts: dict[int | None, list[tuple[int, Tensor | None]]] = {}

    def _parts_under(self, scores: AttentionScores) -> list[tuple[int, Tensor | None]]:
        """Return for each piece the first key that it sees, and its mask from there on."""
        if scores.window not in self._parts:
            firsts = [
                0 if scores.window is None else max(0, before - scores.window + 1) for before in self._before
            ]
            self._parts[scores.window] = [
                (first, segment_mask(before - first + piece.length, piece.length, self.device, scores))
                for first, before, piece in zip(firsts, self._before, self.segments, strict=True)
            ]
        return self._parts[scores.window]

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scores: AttentionScores
    ) -> Tensor:
        layer = self._cache.layer(module, key, value)
        longest = max(self._cache.prompt_lengths)
        pieces = list(zip(self._prompts, self._before, self.segments, strict=True))
        for kind, new in enumerate((key, value)):
            buffer = _roomy(layer.prompts[kind], len(self._cache.prompt_lengths), longest)
            for prompt, before, piece in pieces:
                buffer[prompt, :, before : before + piece.length] = new[0, :, piece.start : piece.end]
            layer.prompts[kind] = buffer
        if not any(self._before):
            return super().attend(module, query, key, value, scores)
        mixed = query.new_empty(*query.shape[:3], value.shape[3])
        for (prompt, before, piece), (first, mask) in zip(pieces, self._parts_under(scores), strict=True):
            keys, values = (
                buffer[prompt, :, first : before + piece.length].to(query.dtype)[None]
                for buffer in layer.prompts
            )
            mixed[:, :, piece.start : piece.end] = attend(
                query[:, :, piece.start : piece.end], keys, values, mask, scores
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
        self._grid, self._places = self._arrange(cache)
        self._views: dict[int | None, _View] = {}

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
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scores: AttentionScores
    ) -> Tensor:
        layer = self._cache.layer(module, key, value)
        for kind, new in enumerate((key, value)):
            layer.own[kind] = _roomy(layer.own[kind], len(self._rows), self._width, _GROWTH)
            layer.own[kind][self._rows, :, self._last] = self._of_rows(new).to(layer.own[kind].dtype)
        heads, width = key.shape[1], key.shape[3]
        # Query heads that share a key head are so many queries of that head.
        row_queries = self._of_rows(query).reshape(len(self._rows), heads, -1, width).to(layer.own[0].dtype)
        row_queries = row_queries * scores.scaling(width)
        view = self._view(scores.window)
        own_tokens = slice(view.own_first, self._width)
        own_keys, own_values = (buffer[: len(self._rows), :, own_tokens] for buffer in layer.own)
        parts = [_part(row_queries, own_keys, own_values, view.own_hidden, scores)]
        if view.prompt_first < max(self._cache.prompt_lengths):
            parts.append(self._over_prompts(layer, row_queries, view, scores))
        mixed = _joined(parts).to(query.dtype).reshape(len(self._rows), -1, value.shape[3])
        return (mixed if self._order is None else mixed[self._order])[None]

    def _view(self, window: int | None) -> _View:
        """Return what the rows see of prompts and of themselves, with a window the last tokens alone."""
        if window not in self._views:
            cache = self._cache
            if window is None:
                hidden = (
                    _hidden(lengths, cache.device) for lengths in (cache.row_lengths, cache.prompt_lengths)
                )
                self._views[window] = _View(0, 0, *hidden)
            else:
                self._views[window] = _view_under(cache, self._grid, window)
        return self._views[window]

    def _of_rows(self, tokens: Tensor) -> Tensor:
        """(1, heads, rows, width) of the packed row to (rows, heads, width) in the order of the rows."""
        turned = tokens[0].transpose(0, 1)
        return turned if self._by_row is None else turned[self._by_row]

    def _over_prompts(
        self, layer: KeptLayer, row_queries: Tensor, view: _View, scores: AttentionScores
    ) -> _PartialSoftmax:
        prompts, most = self._grid.shape
        longest = max(self._cache.prompt_lengths)
        seen = slice(view.prompt_first, longest)
        keys, values = (tensor[:prompts, :, seen] for tensor in layer.prompts)
        heads, queries = row_queries.shape[1:3]
        # (prompts, most, heads, queries, width) to (prompts, heads, most × queries, width)
        grouped = row_queries[self._grid].transpose(1, 2).reshape(prompts, heads, most * queries, -1)

        def of_rows(grouped: Tensor) -> Tensor:
            each = grouped.view(prompts, heads, most, queries, -1).transpose(1, 2)
            return each.reshape(prompts * most, heads, queries, -1)[self._places]

        hidden = view.prompt_hidden
        if hidden is not None and hidden.shape[2] > 1:
            # Each row hides something else; all queries of a row the same.
            hidden = hidden.repeat_interleave(queries, 2)
        return _PartialSoftmax(*map(of_rows, _part(grouped, keys, values, hidden, scores)))


def _view_under(cache: KeyCache, grid: Tensor, window: int) -> _View:
    """Return what rows see of themselves and of their prompts, of which `grid` holds the rows."""
    starts = torch.tensor(cache.row_lengths, device=cache.device) - window
    prompts = torch.tensor(cache.prompt_lengths, device=cache.device)
    # The first token of each row's prompt that it sees; the prompt's length where it sees none.
    first = prompts[torch.tensor(cache.row_prompts, device=cache.device)] + starts
    own_first = max(0, min(cache.row_lengths) - window)
    prompt_first = max(0, int(first.min()))
    own_places = torch.arange(own_first, max(cache.row_lengths), device=cache.device)
    own_hidden = (own_places >= starts[:, None] + window) | (own_places < starts[:, None])
    places = torch.arange(prompt_first, max(prompt_first, *cache.prompt_lengths), device=cache.device)
    prompt_hidden = (places < first[grid][:, :, None]) | (places >= prompts[:, None, None])
    return _View(own_first, prompt_first, own_hidden[:, None, None], prompt_hidden[:, None])


def _part(
    query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None, scores: AttentionScores
) -> _PartialSoftmax:
    """query (N, heads, queries, width) over keys and values (N, heads, tokens, width)."""
    table = scores.capped((query @ keys.transpose(-1, -2)).float())
    if hidden is not None:
        table = table.masked_fill_(hidden, -torch.inf)
    top = table.amax(-1, keepdim=True)
    if scores.window is not None:
        # A row may see nothing of its prompt: all of its weights there are 0.
        top = top.clamp_(min=torch.finfo(top.dtype).min)
    weights = table.sub_(top).exp_()
    return _PartialSoftmax((weights.to(values.dtype) @ values).float(), top, weights.sum(-1, keepdim=True))


def _joined(parts: Sequence[_PartialSoftmax]) -> Tensor:
    first, *others = parts
    if not others:
        return first.mixed.div_(first.total)
    [other] = others
    top = torch.maximum(first.top, other.top)
    mine, theirs = (first.top - top).exp_(), (other.top - top).exp_()
    mixed = first.mixed * mine + other.mixed * theirs
    return mixed.div_(first.total * mine + other.total * theirs)


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
