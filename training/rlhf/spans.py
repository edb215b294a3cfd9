"""Spans of a completion on its tokens and segments; segments' rewards on tokens.

Places are code points into the answer's text. `offsets` are those of the very ids that are trained on or were
generated: one (start, end) for each token, never those of a second tokenisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, overload, runtime_checkable

import torch
from torch import Tensor

from training.contract.segmentation import Granularity, Segment, segment

__all__ = [
    "Granularity",
    "MarkedSpan",
    "Segment",
    "Span",
    "place_segment_rewards",
    "segment",
    "segment_end_tokens",
    "segment_labels",
    "token_labels",
    "trim_spans",
]

Stretch = tuple[int, int]
"""[start, end) in code points."""


@runtime_checkable
class Span(Protocol):
    """Anything that has start, end and category, such as `SpanPart`."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def category(self) -> str: ...


MarkedSpan = Span | tuple[int, int, str]


@overload
def token_labels(
    offsets: Sequence[Stretch], spans: Sequence[MarkedSpan], *, categories: Sequence[str]
) -> dict[str, Tensor]: ...
@overload
def token_labels(offsets: Sequence[Stretch], spans: Sequence[Stretch]) -> Tensor: ...
@overload
def token_labels(offsets: Sequence[Stretch], spans: Sequence[MarkedSpan]) -> dict[str, Tensor]: ...
def token_labels(
    offsets: Sequence[Stretch],
    spans: Sequence[MarkedSpan] | Sequence[Stretch],
    *,
    categories: Sequence[str] | None = None,
) -> Tensor | dict[str, Tensor]:
    """Return the labels of tokens: one is labelled where it shares at least one code point with a span.

    offsets: (start, end) of each token in the answer. spans: half open, in any order, and they may overlap.

    Of spans with a category, (start, end, category) or objects with these fields, the result is a dict from
    category to a bool tensor (tokens,); `categories` names those that must be in it, also where nothing is
    marked, and refuses others. Of bare (start, end) pairs it is one long tensor (tokens,) of 0 and 1, and
    so it is, all 0, without spans and `categories`.

    A token without width, such as the end token (n, n), is never labelled and an empty span labels nothing.
    A token of white space is labelled like any other, and a token that reaches over a span's edge, " word"
    before "word", is labelled whole. So a span that ends in white space would label the next token too:
    `trim_spans` first. All tokens that share one character, as the bytes of an emoji do, are labelled
    together. What a span covers beyond the last token is left out. Raises `ValueError` for a stretch that
    ends before it starts, for pairs among triples, and for a category that `categories` lacks.
    """
    return _labels(offsets, spans, categories)


@overload
def segment_labels(
    segments: Sequence[Stretch], spans: Sequence[MarkedSpan], *, categories: Sequence[str]
) -> dict[str, Tensor]: ...
@overload
def segment_labels(segments: Sequence[Stretch], spans: Sequence[Stretch]) -> Tensor: ...
@overload
def segment_labels(segments: Sequence[Stretch], spans: Sequence[MarkedSpan]) -> dict[str, Tensor]: ...
def segment_labels(
    segments: Sequence[Stretch],
    spans: Sequence[MarkedSpan] | Sequence[Stretch],
    *,
    categories: Sequence[str] | None = None,
) -> Tensor | dict[str, Tensor]:
    """Return the labels of the segments under spans, like `token_labels`: (segments,) for each category.

    Under the granularity "whole" it says whether the answer has any span of the category. `trim_spans` first:
    white space opens the next segment, and a span that ends in it would mark that one too.
    """
    return _labels(segments, spans, categories)


def trim_spans(text: str, spans: Sequence[Span | tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """(start, end, category) of the spans without white space at their edges.

    A double click selects the space behind a word with it. A span of white space alone stays as it is: it
    may be what was meant.
    """
    trimmed = []
    for span in spans:
        start, end, category = _parts(span)
        quote = text[start:end]
        if core := quote.strip():
            start += len(quote) - len(quote.lstrip())
            end = start + len(core)
        trimmed.append((start, end, category))
    return trimmed


def segment_end_tokens(offsets: Sequence[Stretch], segment_ends: Sequence[int]) -> Tensor:
    """Index of the last token of each segment, where its reward is read and paid: T_j, (segments,) long.

    offsets: (start, end) of each token, in the order of the text; segment_ends: where each segment ends in
    the text, at least 1, in any order. T_j is the last token that has text before the segment's end: the
    token that holds the segment's last character, the last of them where several share it (the bytes of an
    emoji), or the last before it where no token does (a tokenizer that drops white space; an answer that
    was cut short). Several segments may end in one token. Tokens without width (BOS, the end token) end no
    segment, unless no token has width: then it is the last token. A segment before all tokens ends with the
    first that has width. Raises `ValueError` without tokens, for an end below 1 and for offsets that run
    backwards.
    """
    if not segment_ends:
        return torch.zeros(0, dtype=torch.long)
    if not offsets:
        raise ValueError(f"there is no token to end {len(segment_ends)} segments on")
    if min(segment_ends) < 1:
        raise ValueError(
            f"a segment ends at {min(segment_ends)}; the end of a segment lies after its last character"
        )
    _require_stretches(offsets)
    wide = [index for index, (start, end) in enumerate(offsets) if end > start]
    if not wide:
        return torch.full((len(segment_ends),), len(offsets) - 1)
    starts = torch.tensor([offsets[index][0] for index in wide])
    backwards = (starts.diff() < 0).nonzero()
    if len(backwards):
        token = wide[int(backwards[0]) + 1]
        raise ValueError(f"the offsets run backwards at token {token}, which starts at {offsets[token][0]}")
    # How many of the tokens start before the end; the last of them is meant.
    before = torch.searchsorted(starts, torch.tensor(list(segment_ends)))
    return torch.tensor(wide)[(before - 1).clamp_min(0)]


def place_segment_rewards(
    offsets: Sequence[Stretch], segment_ends: Sequence[int], rewards: Tensor | Sequence[float]
) -> Tensor:
    """Return each segment's reward on its last token: r_t = Σ_j 1(t = T_j) R_j, (tokens,).

    T_j is `segment_end_tokens`; rewards: (segments,), R_j. Rewards of segments that end in one token add
    up, so the sum over tokens is the sum over segments. A reward for the whole answer with an end token is
    the caller's to put on that token, which belongs to no segment. Float32 or the rewards' own floating
    type, on their device, with their gradient. Wu et al. 2023, without the weights w_k and the KL term.
    """
    values = torch.as_tensor(rewards)
    if not values.is_floating_point():
        values = values.float()
    if values.shape != (len(segment_ends),):
        raise ValueError(f"{len(segment_ends)} segments need as many rewards, not {tuple(values.shape)}")
    ends = segment_end_tokens(offsets, segment_ends).to(values.device)
    return torch.zeros(len(offsets), dtype=values.dtype, device=values.device).index_add(0, ends, values)


def _labels(
    stretches: Sequence[Stretch],
    spans: Sequence[MarkedSpan] | Sequence[Stretch],
    categories: Sequence[str] | None,
) -> Tensor | dict[str, Tensor]:
    _require_stretches(stretches)
    bare = [(span[0], span[1]) for span in spans if isinstance(span, tuple | list) and len(span) == 2]
    if len(bare) == len(spans) and categories is None:
        return _under(stretches, bare).long()
    if bare:
        raise ValueError(f"the span {bare[0]} has no category; give all spans one or none")
    by_category: dict[str, list[Stretch]] = {category: [] for category in categories or ()}
    for span in spans:
        start, end, category = _parts(span)
        if categories is not None and category not in by_category:
            raise ValueError(
                f"the span {start}:{end} is of category {category!r}, which is not among {categories}"
            )
        by_category.setdefault(category, []).append((start, end))
    return {category: _under(stretches, marks) for category, marks in by_category.items()}


def _parts(span: MarkedSpan | Stretch) -> tuple[int, int, str]:
    if isinstance(span, Span):
        return span.start, span.end, span.category
    if len(span) != 3:
        raise ValueError(f"{span!r} is not (start, end, category)")
    return span


def _under(stretches: Sequence[Stretch], spans: Sequence[Stretch]) -> Tensor:
    """(stretches,) bool: those that share a code point with a span."""
    _require_stretches(spans)
    places = torch.tensor(list(stretches), dtype=torch.long).reshape(-1, 1, 2)
    marked = torch.tensor(list(spans), dtype=torch.long).reshape(1, -1, 2)
    first = torch.maximum(places[..., 0], marked[..., 0])
    beyond = torch.minimum(places[..., 1], marked[..., 1])
    return (first < beyond).any(-1)


def _require_stretches(stretches: Sequence[Stretch]) -> None:
    for index, (start, end) in enumerate(stretches):
        if not 0 <= start <= end:
            raise ValueError(f"stretch {index}, ({start}, {end}), ends before it starts or starts before 0")
