"""Attention over packed rows: several judgments, each a tree of texts without what they repeat, no padding.

A row is cut into segments. A segment continues another one, as an answer continues its prompt, or begins a
judgment. A token sees its own segment up to itself and all that its segment continues, and nothing of any
other answer or judgment. So the states are those of separate rows of prompt + answer, while what several
answers begin with is computed once.

On a CPU each segment is one call of scaled dot-product attention (see `segmented_attention`): nothing is
computed for pairs of tokens that do not see each other. On a GPU the whole row is one call of FlexAttention
with a block mask, which skips empty blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from training.rlhf.model.families import decoder_in
from training.rlhf.model.segmented_attention import (
    AttentionScores,
    Bucket,
    Places,
    SegmentedAttention,
    attend,
    causal_mask,
    into_buckets,
)

NAME = "rondo_packed"
"""Under this name transformers finds the function below; outside a packed row it is plain SDPA."""


_CHANGES_SCORES = {"s_aux": "attention sinks", "position_bias": "position biases"}
"""Arguments by which families of models change attention scores, and their names in the field."""

_PIECE = 256
"""Under a window, segments are cut into pieces of so many tokens, or of the window where that is longer:
what no token of a piece sees is not computed. So are long ones whose mask would be written out."""
_MOST_PAIRS = 2**22
"""A mask of more pairs of tokens is not made at once: 4 MB."""
_BLOCK = 128
"""Tokens of a side of FlexAttention's blocks."""


class Segment(NamedTuple):
    """Consecutive tokens of a packed row."""

    start: int
    length: int
    after: int | None = None
    """Number of the segment that it continues, an earlier one; None where a judgment begins."""

    @property
    def end(self) -> int:
        """Return the place after its last token."""
        return self.start + self.length


class Layout:
    """The segments of one packed row, in order and without gaps, and the masks that follow from them."""

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        self.segments = tuple(segments)
        self.device = device
        self._tables: dict[tuple[int | None, bool], tuple[list[Bucket], list[Places]]] = {}
        self._block_masks: dict[int | None, Any] = {}

    @property
    def tokens(self) -> int:
        """Length of the row."""
        return self.segments[-1].end if self.segments else 0

    def lineage(self, number: int | None) -> list[int]:
        """Return a segment's number after those of all that it continues, the first one first."""
        ancestors: list[int] = []
        while number is not None:
            ancestors.append(number)
            number = self.segments[number].after
        return ancestors[::-1]

    @functools.cached_property
    def seen(self) -> list[list[slice]]:
        """For each segment the stretches of the row that its last token sees, in order."""
        visible = []
        for number in range(len(self.segments)):
            stretches: list[slice] = []
            for segment in (self.segments[other] for other in self.lineage(number)):
                if stretches and stretches[-1].stop == segment.start:
                    stretches[-1] = slice(stretches[-1].start, segment.end)
                else:
                    stretches.append(slice(segment.start, segment.end))
            visible.append(stretches)
        return visible

    def visibility(self, window: int | None = None) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """Return which token of the row sees which, as FlexAttention asks: batch, head, query, key.

        Segments are numbered so that those that continue one, and what continues these, follow it: a token
        sees a key where its number lies among them. That takes memory for tokens, not for pairs of them.
        """
        numbers, ends, begins = self._descent()
        lengths = torch.tensor([segment.length for segment in self.segments])

        def by_token(values: Tensor) -> Tensor:
            return values.repeat_interleave(lengths).to(self.device)

        number, end = by_token(torch.tensor(numbers)), by_token(torch.tensor(ends))

        def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (number[key] <= number[query]) & (number[query] < end[key]) & (key <= query)

        if window is None:
            return sees
        begin = torch.tensor([segment.start for segment in self.segments])
        # A token's place among all that its segment continues: windows count these.
        place = torch.arange(self.tokens, device=self.device) + by_token(torch.tensor(begins) - begin)

        def sees_near(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return sees(batch, head, query, key) & (place[query] - place[key] < last)

        # A number that changes is one that torch cannot compile.
        last = torch.tensor(window, device=self.device)
        return sees_near

    def _descent(self) -> tuple[list[int], list[int], list[int]]:
        """Return of each segment its number, the number after those that descend from it, and the tokens
        before it in all that it continues."""
        sizes = [1] * len(self.segments)
        for index in range(len(self.segments) - 1, -1, -1):
            after = self.segments[index].after
            if after is not None:
                sizes[after] += sizes[index]
        numbers, free, begins, roots = [0] * len(sizes), [0] * len(sizes), [0] * len(sizes), 0
        for index, segment in enumerate(self.segments):
            if segment.after is None:
                numbers[index], roots = roots, roots + sizes[index]
            else:
                numbers[index] = free[segment.after]
                free[segment.after] += sizes[index]
                begins[index] = begins[segment.after] + self.segments[segment.after].length
            free[index] = numbers[index] + 1
        return numbers, [number + size for number, size in zip(numbers, sizes, strict=True)], begins

    def block_mask(self, window: int | None = None) -> Any:
        """Return the same for the whole row at once, as FlexAttention wants it."""
        if window not in self._block_masks:
            self._block_masks[window] = block_mask(self.visibility(window), self.tokens, self.device)
        return self._block_masks[window]

    def tables(self, window: int | None = None, *, capped: bool = False) -> tuple[list[Bucket], list[Places]]:
        """Return the segments as a CPU computes them: short ones many at a time, the others one by one."""
        if (window, capped) not in self._tables:
            pieces = [
                piece
                for segment, seen in zip(self.segments, self.seen, strict=True)
                for piece in _pieces((segment.start, segment.end, seen), window, capped=capped)
            ]
            self._tables[window, capped] = into_buckets(pieces, self.tokens, window)
        return self._tables[window, capped]

    def attend(
        self, module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, scores: AttentionScores
    ) -> Tensor:
        """Return the output of attention layer `module`: (1, heads, T, width) to (1, T, heads, width)."""
        if query.device.type == "cuda":
            return flex_attend(compiled_flex_attention(), self, query, key, value, scores)
        buckets, alone = self.tables(scores.window, capped=scores.cap is not None)
        segmented: Tensor = SegmentedAttention.apply(query, key, value, alone, buckets, scores)  # type: ignore[no-untyped-call]
        return segmented


def _pieces(segment: Places, window: int | None, *, capped: bool = False) -> Iterator[Places]:
    """Cut a segment so that what none of a piece's tokens sees is not in its stretches, and no mask is large.

    capped: scores are written out, with a mask even where a token sees all tokens before it.
    """
    start, end, seen = segment
    keys = sum(stretch.stop - stretch.start for stretch in seen)
    if window is not None and keys > window:
        length = max(min(window, _MOST_PAIRS // (2 * window)), _PIECE)
    elif (capped or keys > end - start) and keys * (end - start) > _MOST_PAIRS:
        length = _PIECE
    else:
        yield segment
        return
    before = keys if window is None else window - 1
    for first in range(start, end, length):
        last = min(first + length, end)
        yield first, last, _last_tokens(seen, behind=end - last, count=last - first + before)


def block_mask(
    sees: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], tokens: int, device: torch.device
) -> Any:
    """Return the blocks of a row in which some token sees some key, as FlexAttention wants them.

    torch's own `create_block_mask` writes out all pairs of tokens first: 2.6 GB for 16,384. Here those of 128
    queries are there at a time.
    """
    from torch.nn.attention.flex_attention import BlockMask

    count = -(-tokens // _BLOCK)
    some = torch.zeros(count, count, dtype=torch.bool, device=device)
    whole = torch.zeros_like(some)
    zero = torch.zeros((), dtype=torch.long, device=device)
    for row in range(count):
        queries = torch.arange(row * _BLOCK, min((row + 1) * _BLOCK, tokens), device=device)
        # A token sees none behind it.
        keys = torch.arange(min((row + 1) * _BLOCK, tokens), device=device)
        pairs = sees(zero, zero, queries[:, None], keys[None, :])
        pairs = torch.nn.functional.pad(pairs, (0, -len(keys) % _BLOCK, 0, _BLOCK - len(queries)))
        blocks = pairs.view(_BLOCK, -1, _BLOCK)
        some[row, : row + 1] = blocks.any(2).any(0)
        whole[row, : row + 1] = blocks.all(2).all(0)
    partly = _listed(some & ~whole)
    return BlockMask.from_kv_blocks(
        *partly, *_listed(whole), BLOCK_SIZE=_BLOCK, mask_mod=sees, seq_lengths=(tokens, tokens)
    )


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of blocks of each row, and their columns, which come first: (1, 1, rows, …)."""
    counts = blocks.sum(-1).to(torch.int32)
    columns = blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return counts[None, None], columns[None, None].contiguous()


def _last_tokens(stretches: Sequence[slice], *, behind: int, count: int) -> list[slice]:
    """Return up to `count` tokens of the stretches, which end `behind` tokens before their end."""
    last: list[slice] = []
    for stretch in reversed(stretches):
        stop = max(stretch.start, stretch.stop - behind)
        behind -= stretch.stop - stop
        begin = max(stretch.start, stop - count)
        count -= stop - begin
        if begin < stop:
            last.append(slice(begin, stop))
    return last[::-1]


def flex_attend(
    flex: Callable[..., Any],
    layout: Layout,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scores: AttentionScores,
) -> Tensor:
    """Attention over the whole row in one call of FlexAttention, compiled or not."""
    mixed: Tensor = flex(
        query,
        key,
        value,
        score_mod=None if scores.cap is None else _capping(scores.cap, query.device),
        block_mask=layout.block_mask(scores.window),
        scale=scores.scale,
        enable_gqa=query.shape[1] != key.shape[1],
        # The kernel that it takes on its own for rows below 128 tokens has no blocks that fit ours where
        # many heads share keys, and ends with an error.
        kernel_options={"BACKEND": "TRITON"},
    )
    return mixed.transpose(1, 2).contiguous()


@functools.cache
def _capping(cap: float, device: torch.device) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return the cap as FlexAttention takes it: one function for each cap, so that each compiles once."""
    # torch cannot compile a number that it takes for one that changes.
    bound = torch.tensor(cap, device=device)

    def capped(score: Tensor, _batch: Tensor, _head: Tensor, _query: Tensor, _key: Tensor) -> Tensor:
        return torch.tanh(score / bound) * bound

    return capped


_LAYOUT: ContextVar[Layout | None] = ContextVar("layout", default=None)


def current_layout() -> Layout | None:
    """Return the layout of the packed row that is being computed."""
    return _LAYOUT.get()


@contextmanager
def computing(layout: Layout | None) -> Iterator[None]:
    """Inside, attention is that of this layout; None is plain attention. It is no argument of the model's
    call, for some families do not hand arguments on to their attention."""
    token = _LAYOUT.set(layout)
    try:
        yield
    finally:
        _LAYOUT.reset(token)


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: (1, heads, tokens, width) to (1, tokens, heads, width).

    Outside a packed row this is transformers' own SDPA, whose mask holds the window, and which has no cap.
    """
    layout = _LAYOUT.get()
    if layout is None:
        if softcap is not None:
            return _plain_under_a_cap(
                query, key, value, attention_mask, AttentionScores(scaling, cap=softcap)
            ), None
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **more
        )
        return plain
    # Where products are rounded, rotated queries and keys come back in float32.
    query, key = query.to(value.dtype), key.to(value.dtype)
    for argument, name in _CHANGES_SCORES.items():
        if more.get(argument) is not None:
            raise NotImplementedError(f"its attention uses {name}, which packed attention does not compute")
    return layout.attend(module, query, key, value, AttentionScores(scaling, sliding_window, softcap)), None


def _plain_under_a_cap(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scores: AttentionScores
) -> Tensor:
    if mask is None:
        queries, keys = query.shape[2], key.shape[2]
        mask = causal_mask(keys - queries, queries, query.device)
    return attend(query, key, value, mask, scores).transpose(1, 2).contiguous()


def packed_states(model: Any, input_ids: Tensor, position_ids: Tensor, layout: Layout) -> Tensor:
    """Run a transformer that attends by our packed attention over one packed row: (1, T) to (T, hidden)."""
    # A mask of four dimensions is passed on as it is: transformers makes none of its own, which would
    # be T × T, and ours is in the layout.
    with computing(layout):
        output = decoder_in(model)(
            input_ids=input_ids,
            attention_mask=input_ids.new_zeros(1, 1, 1, 1),
            position_ids=position_ids,
            use_cache=False,
        )
    states: Tensor = output.last_hidden_state[0]
    return states


@functools.cache
def compiled_flex_attention() -> Any:
    """Return FlexAttention, which compiles what a GPU computes when it is first asked for."""
    from torch.nn.attention.flex_attention import flex_attention

    # One for each window, cap, precision, with and without gradients, for rows of one block and of more.
    # Above its own limit of eight torch computes without a kernel, from a matrix of all pairs of tokens.
    return torch.compile(flex_attention, dynamic=True, recompile_limit=64)  # type: ignore[call-overload]


AttentionInterface.register(NAME, packed_attention)
# What is not packed (sampling, single rows) gets the mask that plain SDPA gets.
AttentionMaskInterface.register(NAME, sdpa_mask)
