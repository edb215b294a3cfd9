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
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from training.rlhf.model.segment_buckets import Bucket, Places, into_buckets
from training.rlhf.model.segmented_attention import SegmentedAttention

NAME = "rondo_packed"
"""Under this name transformers finds the function below; without a layout it is plain SDPA."""


_CHANGES_SCORES = ("softcap", "s_aux", "position_bias")
"""Arguments by which families of models change attention scores: caps, sinks and biases."""


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

    @functools.cached_property
    def block_mask(self) -> Any:
        """Return the same for the whole row at once, as FlexAttention wants it."""
        from torch.nn.attention.flex_attention import create_block_mask

        lengths = torch.tensor([segment.length for segment in self.segments])
        number = torch.arange(len(lengths)).repeat_interleave(lengths).to(self.device)
        continues = torch.zeros(len(lengths), len(lengths), dtype=torch.bool)
        for segment in range(len(lengths)):
            continues[segment, self.lineage(segment)] = True
        continues = continues.to(self.device)

        def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return continues[number[query], number[key]] & (key <= query)

        return create_block_mask(sees, None, None, self.tokens, self.tokens, device=str(self.device))

    @functools.cached_property
    def tables(self) -> tuple[list[Bucket], list[Places]]:
        """Return the segments as a CPU computes them: short ones many at a time, the others one by one."""
        segments = [
            (segment.start, segment.end, seen) for segment, seen in zip(self.segments, self.seen, strict=True)
        ]
        return into_buckets(segments, self.tokens)

    def attend(
        self, module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float | None
    ) -> Tensor:
        """Return the output of attention layer `module`: (1, heads, T, width) to (1, T, heads, width)."""
        if query.device.type == "cuda":
            mixed: Tensor = _flex()(
                query,
                key,
                value,
                block_mask=self.block_mask,
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
            return mixed.transpose(1, 2).contiguous()
        buckets, alone = self.tables
        segmented: Tensor = SegmentedAttention.apply(query, key, value, alone, buckets, scaling)  # type: ignore[no-untyped-call]
        return segmented


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: Layout | None = None,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: (1, heads, tokens, width) to (1, tokens, heads, width).

    Without a layout this is transformers' own SDPA.
    """
    if layout is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **more
        )
        return plain
    for name in _CHANGES_SCORES:
        if more.get(name) is not None:
            raise NotImplementedError(f"its attention uses {name}, which packed attention does not compute")
    return layout.attend(module, query, key, value, scaling), None


def packed_states(model: Any, input_ids: Tensor, position_ids: Tensor, layout: Layout) -> Tensor:
    """Run a transformer that attends by our packed attention over one packed row: (1, T) to (T, hidden)."""
    # A mask of four dimensions is passed on as it is: transformers makes none of its own, which would
    # be T × T, and ours is in the layout.
    output = model.get_decoder()(
        input_ids=input_ids,
        attention_mask=input_ids.new_zeros(1, 1, 1, 1),
        position_ids=position_ids,
        use_cache=False,
        layout=layout,
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
