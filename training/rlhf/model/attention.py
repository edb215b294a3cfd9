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

from training.rlhf.model import attention_scores
from training.rlhf.model.attention_scores import Scores, causal_mask
from training.rlhf.model.segment_buckets import Bucket, Places, into_buckets
from training.rlhf.model.segmented_attention import SegmentedAttention

NAME = "rondo_packed"
"""Under this name transformers finds the function below; outside a packed row it is plain SDPA."""


_CHANGES_SCORES = {"s_aux": "attention sinks", "position_bias": "position biases"}
"""Arguments by which families of models change attention scores, and their names in the field."""

_PIECE = 256
"""Under a window, segments are cut into pieces of so many tokens, or of the window where that is longer:
what no token of a piece sees is not computed."""


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
        self._tables: dict[int | None, tuple[list[Bucket], list[Places]]] = {}
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
        """Return which token of the row sees which, as FlexAttention asks: batch, head, query, key."""
        lengths = torch.tensor([segment.length for segment in self.segments])
        number = torch.arange(len(lengths)).repeat_interleave(lengths).to(self.device)
        continues = torch.zeros(len(lengths), len(lengths), dtype=torch.bool)
        for segment in range(len(lengths)):
            continues[segment, self.lineage(segment)] = True
        continues = continues.to(self.device)
        # A token's place among all that its segment continues: windows count these.
        shift = (continues.cpu() * lengths).sum(1) - lengths.cumsum(0)
        place = torch.arange(self.tokens, device=self.device) + shift.to(self.device)[number]

        def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return continues[number[query], number[key]] & (key <= query)

        def sees_near(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return sees(batch, head, query, key) & (place[query] - place[key] < last)

        last = self.tokens if window is None else window
        return sees if window is None else sees_near

    def block_mask(self, window: int | None = None) -> Any:
        """Return the same for the whole row at once, as FlexAttention wants it."""
        from torch.nn.attention.flex_attention import create_block_mask

        if window not in self._block_masks:
            self._block_masks[window] = create_block_mask(
                self.visibility(window), None, None, self.tokens, self.tokens, device=str(self.device)
            )
        return self._block_masks[window]

    def tables(self, window: int | None = None) -> tuple[list[Bucket], list[Places]]:
        """Return the segments as a CPU computes them: short ones many at a time, the others one by one."""
        if window not in self._tables:
            pieces = [
                piece
                for segment, seen in zip(self.segments, self.seen, strict=True)
                for piece in _pieces((segment.start, segment.end, seen), window)
            ]
            self._tables[window] = into_buckets(pieces, self.tokens, window)
        return self._tables[window]

    def attend(
        self, module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, scores: Scores
    ) -> Tensor:
        """Return the output of attention layer `module`: (1, heads, T, width) to (1, T, heads, width)."""
        if query.device.type == "cuda":
            return flex_attend(_flex(), self, query, key, value, scores)
        buckets, alone = self.tables(scores.window)
        segmented: Tensor = SegmentedAttention.apply(query, key, value, alone, buckets, scores)  # type: ignore[no-untyped-call]
        return segmented


def _pieces(segment: Places, window: int | None) -> Iterator[Places]:
    """Cut a segment so that what none of a piece's tokens sees is not in its stretches."""
    start, end, seen = segment
    keys = sum(stretch.stop - stretch.start for stretch in seen)
    if window is None or keys <= window:
        yield segment
        return
    length = max(window, _PIECE)
    for first in range(start, end, length):
        last = min(first + length, end)
        yield first, last, _last_of(seen, behind=end - last, count=last - first + window - 1)


def _last_of(stretches: Sequence[slice], *, behind: int, count: int) -> list[slice]:
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
    flex: Callable[..., Any], layout: Layout, query: Tensor, key: Tensor, value: Tensor, scores: Scores
) -> Tensor:
    """Attention over the whole row in one call of FlexAttention, compiled or not."""
    mixed: Tensor = flex(
        query,
        key,
        value,
        score_mod=None if scores.cap is None else _capping(scores.cap),
        block_mask=layout.block_mask(scores.window),
        scale=scores.scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return mixed.transpose(1, 2).contiguous()


@functools.cache
def _capping(cap: float) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return the cap as FlexAttention takes it: one function for each cap, so that each compiles once."""

    def capped(score: Tensor, _batch: Tensor, _head: Tensor, _query: Tensor, _key: Tensor) -> Tensor:
        return torch.tanh(score / cap) * cap

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
            return _plain_under_a_cap(query, key, value, attention_mask, Scores(scaling, cap=softcap)), None
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **more
        )
        return plain
    for argument, name in _CHANGES_SCORES.items():
        if more.get(argument) is not None:
            raise NotImplementedError(f"its attention uses {name}, which packed attention does not compute")
    return layout.attend(module, query, key, value, Scores(scaling, sliding_window, softcap)), None


def _plain_under_a_cap(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scores: Scores
) -> Tensor:
    if mask is None:
        queries, keys = query.shape[2], key.shape[2]
        mask = causal_mask(keys - queries, queries, query.device)
    return attention_scores.attend(query, key, value, mask, scores).transpose(1, 2).contiguous()


def packed_states(model: Any, input_ids: Tensor, position_ids: Tensor, layout: Layout) -> Tensor:
    """Run a transformer that attends by our packed attention over one packed row: (1, T) to (T, hidden)."""
    # A mask of four dimensions is passed on as it is: transformers makes none of its own, which would
    # be T × T, and ours is in the layout.
    with computing(layout):
        output = model.get_decoder()(
            input_ids=input_ids,
            attention_mask=input_ids.new_zeros(1, 1, 1, 1),
            position_ids=position_ids,
            use_cache=False,
        )
    states: Tensor = output.last_hidden_state[0]
    return states


@functools.cache
def _flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


AttentionInterface.register(NAME, packed_attention)
# What is not packed (sampling, single rows) gets the mask that plain SDPA gets.
AttentionMaskInterface.register(NAME, sdpa_mask)
