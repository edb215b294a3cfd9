"""Rows of many tokens: memory grows with tokens and not with pairs of them, and masks are those of pairs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils._python_dispatch import TorchDispatchMode

from training.rlhf.model import attention
from training.rlhf.model.attention import Layout, Segment
from training.rlhf.model.segmented_attention import AttentionScores, attend

CPU = torch.device("cpu")
LONG = 8192
HEADS, WIDTH = 2, 4


@st.composite
def layouts(draw: Any) -> Layout:
    """A forest of segments of a few tokens each."""
    segments: list[Segment] = []
    for number in range(draw(st.integers(1, 7))):
        after = draw(st.none() | st.integers(0, number - 1)) if number else None
        start = segments[-1].end if segments else 0
        segments.append(Segment(start, draw(st.integers(1, 150)), after))
    return Layout(segments, CPU)


def pairs_of(layout: Layout, window: int | None) -> Tensor:
    """(T, T): which token sees which, by walking from each segment to what it continues."""
    seen = torch.zeros(layout.tokens, layout.tokens, dtype=torch.bool)
    for number, segment in enumerate(layout.segments):
        stretches = [layout.segments[ancestor] for ancestor in layout.lineage(number)]
        keys = [key for stretch in stretches for key in range(stretch.start, stretch.end)]
        for query in range(segment.start, segment.end):
            before = keys[: keys.index(query) + 1]
            seen[query, before if window is None else before[-window:]] = True
    return seen


@settings(max_examples=25, deadline=None)
@given(layouts(), st.sampled_from([None, 1, 5, 40, 130]))
def test_a_block_mask_is_that_of_all_pairs(layout: Layout, window: int | None) -> None:
    pairs = pairs_of(layout, window)
    index = torch.arange(layout.tokens)
    sees = layout.visibility(window)
    assert torch.equal(sees(index[:1], index[:1], index[:, None], index[None, :]), pairs)
    ours = layout.block_mask(window)
    theirs = create_block_mask(sees, None, None, layout.tokens, layout.tokens, device="cpu")
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    assert ours.seq_lengths == theirs.seq_lengths


@settings(max_examples=25, deadline=None)
@given(layouts(), st.sampled_from([None, 5, 40]), st.sampled_from([None, 2.0]))
def test_segments_in_pieces_attend_as_all_pairs_do(
    layout: Layout, window: int | None, cap: float | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = [
        torch.randn(1, HEADS, layout.tokens, WIDTH, generator=generator, requires_grad=True) for _ in range(3)
    ]
    query, key, value = drawn
    scores = AttentionScores(None, window, cap)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "_MOST_PAIRS", 600)
        patch.setattr(attention, "_PIECE", 16)
        attended = layout.attend(torch.nn.Module(), query, key, value, scores)
    expected = attend(query, key, value, pairs_of(layout, window), scores).transpose(1, 2)
    torch.testing.assert_close(attended, expected, atol=1e-5, rtol=1e-5)
    slope = torch.randn(attended.shape, generator=generator)
    ours, theirs = (torch.autograd.grad(output, drawn, slope) for output in (attended, expected))
    for gradient, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(gradient, other, atol=2e-5, rtol=1e-4)


class Largest(TorchDispatchMode):
    """Knows the largest tensor that was made inside."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor) and tensor.is_contiguous():
                self.numbers = max(self.numbers, tensor.numel())
        return result


def long_row(tokens: int) -> Layout:
    half = tokens // 2
    return Layout([Segment(0, half), Segment(half, tokens - half - 40, 0), Segment(tokens - 40, 40, 0)], CPU)


def largest_of(tokens: int, scores: AttentionScores) -> int:
    drawn = [torch.zeros(1, HEADS, tokens, WIDTH, requires_grad=True) for _ in range(3)]
    query, key, value = drawn
    with Largest() as largest:
        attended = long_row(tokens).attend(torch.nn.Module(), query, key, value, scores)
        torch.autograd.grad(attended.sum(), drawn)
    return int(largest.numbers)


@pytest.mark.slow
@pytest.mark.parametrize(
    "scores",
    [AttentionScores(), AttentionScores(window=3000), AttentionScores(cap=2.0)],
    ids=["plain", "window", "cap"],
)
def test_no_tensor_of_a_long_row_has_a_number_for_each_pair(scores: AttentionScores) -> None:
    once, twice = (largest_of(tokens, scores) for tokens in (LONG // 2, LONG))
    # 256 queries at a time, of all heads.
    assert twice <= 256 * HEADS * LONG < LONG**2 // 8
    assert twice <= 2.1 * once


def test_no_tensor_of_a_block_mask_has_a_number_for_each_pair() -> None:
    sizes = []
    for tokens in (LONG, 2 * LONG):
        with Largest() as largest:
            long_row(tokens).block_mask()
        sizes.append(largest.numbers)
    assert sizes[1] <= 128 * 2 * LONG
    assert sizes[1] <= 2.1 * sizes[0]
