"""Attention over segments against one attention over the whole row under a mask that is written out."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from training.rlhf.model.attention import Layout, Segment, compiled_flex_attention, flex_attend
from training.rlhf.model.segmented_attention import AttentionScores, SegmentedAttention, causal_mask

CPU = torch.device("cpu")
PLAIN = AttentionScores()


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Draw some judgments: texts that continue others or start from the beginning."""
    segments: list[Segment] = []
    place = 0
    for number, length in enumerate(draw(st.lists(st.integers(1, 7), min_size=1, max_size=18))):
        after = draw(st.one_of(st.none(), st.integers(0, number - 1))) if number else None
        segments.append(Segment(place, length, after))
        place += length
    return Layout(segments, CPU)


def visible(layout: Layout, window: int | None = None) -> Tensor:
    """(T, T), True where the row's token sees the column's, token by token."""
    owner = [number for number, segment in enumerate(layout.segments) for _ in range(segment.length)]
    seen = torch.zeros(len(owner), len(owner), dtype=torch.bool)
    for token, number in enumerate(owner):
        continued: int | None = number
        while continued is not None:
            seen[token, [other for other in range(token + 1) if owner[other] == continued]] = True
            continued = layout.segments[continued].after
        if window is not None:
            seen[token, seen[token].nonzero()[:-window, 0]] = False
    return seen


def written_out(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, scores: AttentionScores) -> Tensor:
    """Attention step by step: (1, heads, T, width) to (1, T, heads, width)."""
    key, value = (tensor.repeat_interleave(query.shape[1] // tensor.shape[1], 1) for tensor in (key, value))
    table = query @ key.transpose(-1, -2) * scores.scaling(query.shape[-1])
    if scores.cap is not None:
        table = scores.cap * torch.tanh(table / scores.cap)
    return (table.masked_fill(~seen, -torch.inf).softmax(-1) @ value).transpose(1, 2)


def both(
    layout: Layout, heads: int, groups: int, seed: int, scores: AttentionScores = PLAIN
) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and the three gradients, ours and by one masked attention, in float64."""
    random = torch.Generator().manual_seed(seed)
    # Values are narrower than keys, as in DeepSeek's attention.
    given_ = [
        torch.randn(1, size, layout.tokens, width, generator=random, dtype=torch.float64, requires_grad=True)
        for size, width in ((heads, 8), (groups, 8), (groups, 6))
    ]
    slope = torch.randn(1, layout.tokens, heads, 6, generator=random, dtype=torch.float64)
    buckets, alone = layout.tables(scores.window)
    ours = SegmentedAttention.apply(*given_, alone, buckets, scores)
    plain = written_out(given_[0], given_[1], given_[2], visible(layout, scores.window), scores)
    return [ours, *torch.autograd.grad(ours, given_, slope)], [
        plain,
        *torch.autograd.grad(plain, given_, slope),
    ]


SCORES = st.builds(
    AttentionScores,
    scale=st.sampled_from([None, 0.7]),
    window=st.one_of(st.none(), st.integers(1, 12)),
    cap=st.sampled_from([None, 0.5, 3.0]),
)


@given(
    layout=layouts(),
    shape=st.sampled_from([(2, 2), (4, 2), (3, 1)]),
    seed=st.integers(0, 2**31),
    scores=SCORES,
)
def test_outputs_and_gradients_are_those_of_one_masked_attention(
    layout: Layout, shape: tuple[int, int], seed: int, scores: AttentionScores
) -> None:
    for ours, plain in zip(*both(layout, *shape, seed, scores), strict=True):
        # A cap is computed in float32, as the families' own code does.
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12 if scores.cap is None else 3e-6)


@given(layout=layouts(), seed=st.integers(0, 2**31), scores=SCORES)
@settings(max_examples=10, deadline=None)
def test_flex_attention_is_given_the_same_mask_and_the_same_cap(
    layout: Layout, seed: int, scores: AttentionScores
) -> None:
    random = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(1, heads, layout.tokens, 16, generator=random) for heads in (4, 2, 2))
    seen = visible(layout, scores.window)
    places = torch.arange(layout.tokens)
    sees = layout.visibility(scores.window)
    none = torch.zeros((), dtype=torch.long)
    assert torch.equal(sees(none, none, places[:, None], places[None, :]), seen)
    with warnings.catch_warnings():
        # Uncompiled, it says that it is slow.
        warnings.simplefilter("ignore")
        mixed = flex_attend(flex_attention, layout, query, key, value, scores)
    torch.testing.assert_close(mixed, written_out(query, key, value, seen, scores), rtol=0, atol=1e-5)


@pytest.mark.long  # A minute each of the compiler's time.
@pytest.mark.parametrize(
    "scores",
    [PLAIN, AttentionScores(window=40), AttentionScores(cap=2.0), AttentionScores(window=40, cap=2.0)],
)
def test_flex_attention_compiles_with_every_way_to_score(scores: AttentionScores) -> None:
    layout = Layout([Segment(0, 300), Segment(300, 150, 0), Segment(450, 150, 0)], CPU)
    torch.compiler.reset()
    random = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, layout.tokens, 64, generator=random) for heads in (4, 2, 2))
    with torch.no_grad():
        mixed = flex_attend(compiled_flex_attention(), layout, query, key, value, scores)
    seen = visible(layout, scores.window)
    torch.testing.assert_close(mixed, written_out(query, key, value, seen, scores), rtol=0, atol=1e-5)


def test_short_rows_take_the_kernel_of_long_ones() -> None:
    # On an H100, rows below 128 tokens whose 32 heads share 4 keys ended with "No choices exist for backend".
    asked: list[dict[str, str]] = []

    def recording(query: Tensor, *_: Tensor, kernel_options: dict[str, str], **__: object) -> Tensor:
        asked.append(kernel_options)
        return query

    layout = Layout([Segment(0, 40), Segment(40, 9, 0)], CPU)
    query, key = torch.zeros(1, 32, 49, 16), torch.zeros(1, 4, 49, 16)
    flex_attend(recording, layout, query, key, key, PLAIN)
    assert asked == [{"BACKEND": "TRITON"}]


@pytest.mark.parametrize("window", [5, 100, 300])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_long_segments_under_a_window_are_cut_into_pieces_that_see_what_is_near(
    window: int, cap: float | None
) -> None:
    layout = Layout([Segment(0, 290), Segment(290, 530, 0), Segment(820, 30, 0), Segment(850, 40, 1)], CPU)
    _, alone = layout.tables(window)
    longest = max(window, 256)
    for start, end, seen in alone:
        assert end - start <= longest
        assert sum(span.stop - span.start for span in seen) <= end - start + window - 1
    scores = AttentionScores(window=window, cap=cap)
    for ours, plain in zip(*both(layout, 2, 1, 3, scores), strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-11 if cap is None else 3e-6)


def test_a_cap_on_a_row_longer_than_a_block_of_queries_is_that_of_the_whole() -> None:
    layout = Layout([Segment(0, 600), Segment(600, 5, 0)], CPU)
    for ours, plain in zip(*both(layout, 2, 2, 3, AttentionScores(cap=1.5)), strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=3e-6)


def test_many_short_segments_are_computed_together_and_a_long_one_by_itself() -> None:
    # A prompt of 300 tokens with nine answers of three to five, and six prompts of four tokens.
    segments, place = [Segment(0, 300)], 300
    for length, after in [*((3 + index % 3, 0) for index in range(9)), *((4, None) for _ in range(6))]:
        segments.append(Segment(place, length, after))
        place += length
    layout = Layout(segments, CPU)
    buckets, alone = layout.tables()
    # What the answers see is too long for a table; the prompts of four tokens share one.
    assert [bucket.queries.shape for bucket in buckets] == [(6, 4)]
    assert len(alone) == 10
    for ours, plain in zip(*both(layout, 4, 2, 3), strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-11)


def test_answers_of_many_lengths_fit_into_few_tables() -> None:
    segments, place = [Segment(0, 20)], 20
    for index in range(40):
        segments.append(Segment(place, 2 + index % 13, 0))
        place += 2 + index % 13
    layout = Layout(segments, CPU)
    buckets, alone = layout.tables()
    assert len(buckets) <= 4
    assert [piece[:2] for piece in alone] == [(0, 20)]
    for ours, plain in zip(*both(layout, 4, 2, 5), strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-11)


def test_a_segment_longer_than_a_block_of_queries_has_the_same_gradients() -> None:
    layout = Layout([Segment(0, 30), Segment(30, 210, 0), Segment(240, 97, 0)], CPU)
    for ours, plain in zip(*both(layout, 4, 2, 3), strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-11)


@pytest.mark.parametrize("scaling", [None, 0.3])
def test_the_scale_is_that_of_the_call(scaling: float | None) -> None:
    random = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(1, 1, 5, 4, generator=random, requires_grad=True) for _ in range(3))
    ours = SegmentedAttention.apply(query, key, value, [(0, 5, [slice(0, 5)])], [], AttentionScores(scaling))
    plain = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling).transpose(1, 2)
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(
        torch.autograd.grad(ours.square().sum(), query), torch.autograd.grad(plain.square().sum(), query)
    )


def test_in_bfloat16_gradients_are_those_of_float32_but_for_rounding() -> None:
    random = torch.Generator().manual_seed(2)
    wide = [torch.randn(1, 2, 40, 16, generator=random) for _ in range(3)]
    segments = [(0, 10, [slice(0, 10)]), (10, 40, [slice(0, 40)])]
    gradients = []
    for dtype in (torch.bfloat16, torch.float32):
        rounded = [tensor.to(torch.bfloat16).to(dtype).requires_grad_() for tensor in wide]
        mixed = SegmentedAttention.apply(*rounded, segments, [], AttentionScores())
        gradients.append(torch.autograd.grad(mixed.float().square().sum(), rounded))
    for narrow, exact in zip(*gradients, strict=True):
        assert narrow.dtype == torch.bfloat16
        torch.testing.assert_close(narrow.float(), exact, rtol=0.03, atol=0.03)


def test_a_token_sees_what_lies_before_it_and_itself() -> None:
    assert causal_mask(2, 2, CPU).int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
