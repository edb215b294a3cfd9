"""The second way through a model, for families that packed attention does not know: rows that are padded.

Attention sinks, biases by distance, layers that keep a state in place of keys: what a family computes between
its tokens is left to its makers' code, which reads every completion as a row of its own, with its prompt,
padded at its end. No token of a causal model sees what follows it, so that padding there changes nothing and
needs no mask. Results are those of the packed way. It costs reading a prompt again for each of its
completions, and the padding.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from training.rlhf.model.attention import Layout
from training.rlhf.model.families import decoder_in

_TOKENS_AT_ONCE = 8192
"""Tokens of one pass, padding among them; a longer row goes alone."""
_SHORT = 16
"""Rows of one pass differ by so many tokens and a quarter at most: the rest would be computed for nothing."""
_CACHES = ("past_key_values", "cache", "cache_params")
"""Names under which decoders take and return what they keep of the tokens that they have read."""


def packs_rows(model: Any) -> bool:
    """Return whether a model computes packed rows; if not, its rows are padded."""
    return bool(getattr(model, "packs_rows", True))


def attends_by(model: Any, implementation: str) -> bool:
    """Return whether a model computes attention by this implementation."""
    return bool(model.config._attn_implementation == implementation)


def pad_rows(model: Any, implementation: str, *, keeps: bool) -> None:
    """Let a model's rows be padded from now on, its attention be computed by one of transformers' own
    implementations, and what it has read of a row be kept, or read again for every token.

    A family with code of its own goes on with that. Raises `ValueError` where it has not that implementation.
    """
    model.packs_rows, model.keeps_rows = False, keeps
    model.set_attn_implementation(implementation)
    if getattr(model.config, "rescale_every", 0):
        # RWKV halves its weights where they lie, every few layers, against overflows of float16: adapters
        # would be added to other weights than they were trained beside.
        model.config.rescale_every = model.config.num_hidden_layers + 1


class PaddedRows:
    """The segments of a packed row as rows of their own: each branch with all that it continues.

    A segment that several rows share is read in each of them, and its states are taken from the first.
    """

    def __init__(self, layout: Layout) -> None:
        continued = {segment.after for segment in layout.segments}
        leaves = [number for number in range(len(layout.segments)) if number not in continued]
        lineages = [layout.lineage(leaf) for leaf in leaves]
        rows = [
            torch.cat([torch.arange(layout.segments[n].start, layout.segments[n].end) for n in lineage])
            for lineage in lineages
        ]
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        self.rows = [rows[row].to(layout.device) for row in order]
        """For each row the places of its tokens in the packed row, the shortest row first."""
        self._tokens = layout.tokens
        self._device = layout.device

    def passes(self, input_ids: Tensor) -> Iterator[Tensor]:
        """Yield the ids of each pass, (rows, longest): those of a packed row (1, T), padded with any."""
        for rows in self._together():
            yield torch.nn.utils.rnn.pad_sequence([input_ids[0, row] for row in rows], batch_first=True)

    def gathered(self, states: Sequence[Tensor]) -> Tensor:
        """Return the states of all passes, (rows, longest, hidden) each, at their places: (T, hidden)."""
        flat = torch.cat([some.flatten(0, 1) for some in states])
        found = torch.full((self._tokens,), -1, device=self._device)
        start = 0
        for rows in self._together():
            longest = len(rows[-1])
            for row in rows:
                free = found[row] < 0
                found[row[free]] = start + torch.arange(len(row), device=self._device)[free]
                start += longest
        return flat[found]

    def _together(self) -> Iterator[list[Tensor]]:
        some: list[Tensor] = []
        for row in self.rows:
            longest = len(some[0]) * 5 // 4 + _SHORT if some else len(row)
            if len(row) > longest or (some and (len(some) + 1) * len(row) > _TOKENS_AT_ONCE):
                yield some
                some = []
            some.append(row)
        if some:
            yield some


def padded_states(model: Any, input_ids: Tensor, layout: Layout) -> Tensor:
    """Run a transformer over the rows of a packed row, each by itself: (1, T) to (T, hidden)."""
    rows = PaddedRows(layout)
    return rows.gathered([_pass(model, ids) for ids in rows.passes(input_ids)])


def _pass(model: Any, ids: Tensor) -> Tensor:
    states: Tensor = decoder_in(model)(input_ids=ids, use_cache=False).last_hidden_state
    return states


class RowCache:
    """What a model keeps of rows of one length that it has read, so that it goes on from there.

    One that keeps nothing reads its rows again for every token.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._name = _cache_argument(model) if getattr(model, "keeps_rows", True) else None
        self._kept: Any = None
        self._ids: Tensor | None = None

    def read(self, ids: Tensor) -> Tensor:
        """Read further tokens of every row, (rows, tokens); the states after them, (rows, hidden)."""
        decoder = decoder_in(self._model)
        if self._name is None:
            self._ids = ids if self._ids is None else torch.cat([self._ids, ids], dim=1)
            states: Tensor = decoder(input_ids=self._ids, use_cache=False).last_hidden_state
        else:
            output = decoder(input_ids=ids, use_cache=True, **{self._name: self._kept})
            self._kept = getattr(output, self._name)
            states = output.last_hidden_state
        return states[:, -1]

    def chosen(self, rows: Sequence[int]) -> RowCache:
        """Return the cache of these rows in this order; one may stand in it several times. It is apart from
        this one."""
        other = copy.copy(self)
        index = torch.tensor(rows, device=self._model.device)
        if self._ids is not None:
            other._ids = self._ids[index]
        if self._kept is not None:
            other._kept = copy.deepcopy(self._kept)
            other._kept.reorder_cache(index)
        return other

    def keep(self, rows: Sequence[int]) -> None:
        """Forget all rows but these."""
        index = torch.tensor(rows, device=self._model.device)
        if self._ids is not None:
            self._ids = self._ids[index]
        if self._kept is not None:
            self._kept.reorder_cache(index)


def _cache_argument(model: Any) -> str | None:
    """Return the name of the argument by which a decoder takes its cache; None where it takes none."""
    known = inspect.signature(decoder_in(model).forward).parameters
    return next((name for name in _CACHES if name in known), None)
