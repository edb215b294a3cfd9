"""Attention over the segments of a packed row on a CPU, and its derivative, in one piece.

Left to autograd, every segment's slices each cost a zeroed tensor as large as the whole row in the backward
pass, and torch's own backward of scaled dot-product attention takes ten times its forward's time for the
short segments that judgments have. Here the derivative is that of Dao et al. 2022 (FlashAttention, appendix
B.2) by matrix products in float32, on blocks of queries, written where it belongs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# ── Scores of attention: their scale, a sliding window and a soft cap, and attention with them ──
#
# Families of models differ in these three. A window ends what a token sees to so many tokens, itself among
# them (Beltagy et al. 2020). A cap bends scores towards ± cap by cap · tanh(score / cap) (Gemma Team 2024,
# §2).

_QUERIES = 256
"""Queries at a time where scores are written out: their memory grows with those of them."""
_SMALL = 2**20
"""Masks of at most so many pairs of tokens are kept."""


class AttentionScores(NamedTuple):
    """The way an attention layer scores keys."""

    scale: float | None = None
    """Factor of the products; None is 1 / √width."""
    window: int | None = None
    """Tokens that a token sees, itself and those before it; None is all."""
    cap: float | None = None
    """Bound of the scores; None is none."""

    def scaling(self, width: int) -> float:
        """Return the factor for queries of this width."""
        return float(width**-0.5) if self.scale is None else self.scale

    def narrows(self, keys: int) -> bool:
        """Return whether the last of so many tokens does not see all of them."""
        return self.window is not None and keys > self.window

    def capped(self, scores: Tensor) -> Tensor:
        """Return the scores under the cap."""
        return scores if self.cap is None else torch.tanh(scores / self.cap) * self.cap

    def bend_(self, scores: Tensor) -> Tensor | None:
        """Put scores under the cap where they lie; their derivative by what they were, None without a cap."""
        if self.cap is None:
            return None
        scores.div_(self.cap).tanh_()
        slope = 1 - scores.square()
        scores.mul_(self.cap)
        return slope


def causal_mask(before: int, length: int, device: torch.device, window: int | None = None) -> Tensor:
    """Return the causal mask of `length` tokens after `before` others: (length, before + length) booleans."""
    # Small ones are asked for again and again; large ones would fill the memory.
    make = _small_mask if length * (before + length) <= _SMALL else _causal_mask
    return make(before, length, device, window)


def _causal_mask(before: int, length: int, device: torch.device, window: int | None) -> Tensor:
    mask = torch.ones(length, before + length, dtype=torch.bool, device=device).tril(before)
    return mask if window is None else mask.triu(before - window + 1)


_small_mask = functools.lru_cache(maxsize=64)(_causal_mask)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scores: AttentionScores) -> Tensor:
    """Attention of (N, heads, Q, width) queries over (N, key heads, K, width) keys and values.

    mask: (Q, K) or (N, 1, Q, K), True where a query sees a key; the window is in it. None: K is Q, and a
    token sees those before it and itself.
    """
    if scores.cap is not None:
        if mask is None:
            mask = causal_mask(0, query.shape[2], query.device)
        return _written_out(query, key, value, mask, scores)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scores.scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _written_out(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scores: AttentionScores) -> Tensor:
    """Scaled dot-product attention has no place for a cap: scores are computed, some queries at a time."""
    count, heads, rows, width = query.shape
    groups = key.shape[1]
    # Heads that share keys lie together.
    grouped = query.reshape(count, groups, heads // groups, rows, width)
    keys, values = key.unsqueeze(2).transpose(-1, -2), value.unsqueeze(2)
    wide = mask if mask.ndim == 2 else mask.unsqueeze(1)
    mixed = []
    for first in range(0, rows, _QUERIES):
        block = slice(first, first + _QUERIES)
        products = (grouped[..., block, :] @ keys).float() * scores.scaling(width)
        # Padding may see nothing: it must stay a number.
        hidden = torch.finfo(products.dtype).min
        seen = scores.capped(products).masked_fill(~wide[..., block, :], hidden)
        mixed.append(seen.softmax(-1).to(values.dtype) @ values)
    return torch.cat(mixed, -2).reshape(count, heads, rows, value.shape[-1])


# ── Short segments of a packed row, many at a time in a padded table ────────────────────
#
# A step of policy optimisation packs hundreds of answers of a few tokens. One call each costs more than the
# arithmetic in it, so segments of about the same size are gathered into one batch. What is padded is a few
# queries and keys of attention, and no token of any layer beside it.

Places = tuple[int, int, Sequence[slice]]
"""First place of a segment, the place after its last, and the stretches that its last token sees."""

_FEW = 4
"""Fewer segments of a size are not worth a table."""
_LONGEST = 256
"""Segments that see more than this have arithmetic enough of their own."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """S segments with at most Q tokens that see at most K, in a row of T."""

    queries: Tensor
    """(S, Q) places of their tokens; 0 behind the last."""
    keys: Tensor
    """(S, K) places of what they see, in order; 0 behind the last."""
    seen: Tensor
    """(S, 1, Q, K) whether a token sees a key."""
    real: Tensor
    """(N,) which of the S · Q queries are tokens."""
    places: Tensor
    """(N,) their places."""
    slots: Tensor
    """(M,) which of the S · K keys are tokens, by the place that they are of."""
    first_slots: Tensor
    """(T,) where in `slots` those of each place begin."""


def into_buckets(
    segments: Sequence[Places], tokens: int, window: int | None = None
) -> tuple[list[Bucket], list[Places]]:
    """Tables of the short segments, and the segments that stay by themselves. window: tokens that a token
    sees, itself among them; None is all."""
    sizes: dict[tuple[int, int], list[Places]] = {}
    for segment in segments:
        start, end, seen = segment
        keys = sum(stretch.stop - stretch.start for stretch in seen)
        # A table is at most twice as wide and as long as any of its segments.
        sizes.setdefault(((end - start).bit_length(), keys.bit_length()), []).append(segment)
    buckets, alone = [], []
    for (_, wide), some in sizes.items():
        if len(some) >= _FEW and wide <= _LONGEST.bit_length() - 1:
            buckets.append(_bucket(some, tokens, window))
        else:
            alone += some
    return buckets, alone


def _bucket(segments: Sequence[Places], tokens: int, window: int | None) -> Bucket:
    queries = [torch.arange(start, end) for start, end, _ in segments]
    keys = [
        torch.tensor(list(chain.from_iterable(range(part.start, part.stop) for part in seen)))
        for _, _, seen in segments
    ]
    lengths = torch.tensor([len(query) for query in queries])
    widths = torch.tensor([len(key) for key in keys])
    table = torch.nn.utils.rnn.pad_sequence(queries, batch_first=True)
    key_table = torch.nn.utils.rnn.pad_sequence(keys, batch_first=True)
    row, column = torch.arange(table.shape[1]), torch.arange(key_table.shape[1])
    # Padded queries see what the last token sees: one that sees nothing would be no number.
    last_seen = ((widths - lengths)[:, None] + row).minimum(widths[:, None] - 1)[:, :, None]
    seen = column <= last_seen
    if window is not None:
        seen &= column > last_seen - window
    real = (row < lengths[:, None]).flatten().nonzero()[:, 0]
    used = (column < widths[:, None]).flatten().nonzero()[:, 0]
    of_place = key_table.flatten()[used]
    counts = torch.bincount(of_place, minlength=tokens)
    return Bucket(
        queries=table,
        keys=key_table,
        seen=seen.unsqueeze(1),
        real=real,
        places=table.flatten()[real],
        slots=used[of_place.argsort(stable=True)],
        first_slots=counts.cumsum(0) - counts,
    )


def attend_to_buckets(
    bucket: Bucket, query: Tensor, key: Tensor, value: Tensor, scores: AttentionScores
) -> Tensor:
    """(1, heads, T, width) queries, (1, key heads, T, width) keys and values to (N, heads, width)."""
    mixed = attend(
        _table(query[0], bucket.queries),
        _table(key[0], bucket.keys),
        _table(value[0], bucket.keys),
        bucket.seen,
        scores,
    )
    return mixed.transpose(1, 2).flatten(0, 1)[bucket.real]


def bucket_gradients(
    bucket: Bucket,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    slopes: Tensor,
    at_outputs: Tensor,
    *,
    scores: AttentionScores,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the bucket's queries (groups, heads of each, N, width), and of all keys and values
    (groups, T, width).

    queries, slopes: (groups, heads of each, T, width); keys, values: (groups, T, width); at_outputs:
    (groups, heads of each, T, 1), the sum of output times its gradient. All float32.
    """
    groups, members, _, width = queries.shape
    count, rows = bucket.queries.shape
    columns = bucket.keys.shape[1]
    flat, slope, at_output = (
        _table(whole.flatten(0, 1), bucket.queries).reshape(count * groups, members * rows, -1)
        for whole in (queries, slopes, at_outputs)
    )
    some_keys, some_values = (_table(whole, bucket.keys).flatten(0, 1) for whole in (keys, values))
    seen = bucket.seen.unsqueeze(1)
    scaling = scores.scaling(width)
    products = torch.bmm(flat, some_keys.transpose(1, 2)).mul_(scaling)
    bends = scores.bend_(products)
    table = products.view(count, groups, members, rows, columns)
    shares = table.masked_fill_(~seen, -torch.inf).softmax(-1).view(count * groups, members * rows, columns)
    padding = torch.ones(count * rows, dtype=torch.bool).index_fill_(0, bucket.real, False)
    slope.view(count, groups, members, rows, -1).masked_fill_(padding.view(count, 1, 1, rows, 1), 0)
    of_values = torch.bmm(shares.transpose(1, 2), slope)
    of_scores = torch.bmm(slope, some_values.transpose(1, 2))
    of_scores.sub_(at_output).mul_(shares).mul_(scaling)
    if bends is not None:
        of_scores.mul_(bends)
    of_scores.view(count, groups, members, rows, columns).masked_fill_(padding.view(count, 1, 1, rows, 1), 0)
    of_keys = torch.bmm(of_scores.transpose(1, 2), flat)
    of_queries = torch.bmm(of_scores, some_keys).view(count, groups, members, rows, width)
    return (
        of_queries.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, bucket.real],
        _gathered(bucket, of_keys.view(count, groups, columns, width)),
        _gathered(bucket, of_values.view(count, groups, columns, -1)),
    )


def _table(whole: Tensor, places: Tensor) -> Tensor:
    """(heads, T, width) to (S, heads, places, width)."""
    count, rows = places.shape
    gathered = whole.transpose(0, 1).index_select(0, places.flatten())
    return gathered.view(count, rows, *gathered.shape[1:]).transpose(1, 2)


def _gathered(bucket: Bucket, parts: Tensor) -> Tensor:
    """The sum of what each place got from all that see it: (S, groups, K, width) to (groups, T, width)."""
    count, groups, columns, width = parts.shape
    flat = parts.transpose(1, 2).reshape(count * columns, groups * width)
    summed = F.embedding_bag(bucket.slots, flat, bucket.first_slots, mode="sum")
    return summed.view(-1, groups, width).transpose(0, 1)


_BLOCK = 96
"""Queries at a time in the backward pass: few, so that little is computed for keys that they do not see."""

Stretches = Sequence[slice]


class SegmentedAttention(torch.autograd.Function):
    """(1, heads, T, width) queries, (1, key heads, T, width) keys and values to (1, T, heads, width).

    segments: of each its first place, the place after its last, and the stretches of the row that its last
    token sees, itself included, in order. A token sees them up to itself. buckets: the other segments of the
    row, which are computed many at a time. scores: with a window, a token sees the last ones alone, and
    tokens that no token of a segment sees are not among its stretches. The gradients of keys and values,
    which come from several segments, are added up in float32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        segments: Sequence[Places],
        buckets: Sequence[Bucket],
        scores: AttentionScores,
    ) -> Tensor:
        _, heads, tokens, _ = query.shape
        mixed = query.new_empty(1, tokens, heads, value.shape[-1])
        for start, end, seen in segments:
            keys, values = joined(key, seen), joined(value, seen)
            mask = segment_mask(keys.shape[2], end - start, query.device, scores)
            some = attend(query[:, :, start:end], keys, values, mask, scores)
            mixed[:, start:end] = some.transpose(1, 2)
        for bucket in buckets:
            mixed[0].index_copy_(0, bucket.places, attend_to_buckets(bucket, query, key, value, scores))
        ctx.save_for_backward(query, key, value, mixed)
        ctx.segments, ctx.buckets, ctx.scores = segments, buckets, scores
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mixed = ctx.saved_tensors
        _, heads, tokens, _ = query.shape
        groups = key.shape[1]
        shape = (groups, heads // groups, tokens, -1)
        wide = torch.promote_types(query.dtype, torch.float32)
        # Heads that share keys lie together: their queries are rows of one matrix.
        queries, outputs, slopes = (
            whole[0].to(wide).reshape(shape)
            for whole in (query, mixed.transpose(1, 2), gradients[0].transpose(1, 2))
        )
        keys, values = key[0].to(wide), value[0].to(wide)
        at_outputs = (outputs * slopes).sum(-1, keepdim=True)
        of_queries = torch.empty_like(queries)
        of_keys, of_values = torch.zeros_like(keys), torch.zeros_like(values)
        for bucket in ctx.buckets:
            here = bucket_gradients(bucket, queries, keys, values, slopes, at_outputs, scores=ctx.scores)
            of_queries.index_copy_(2, bucket.places, here[0])
            of_keys += here[1]
            of_values += here[2]
        for start, end, seen in ctx.segments:
            some_keys, some_values = joined(keys, seen), joined(values, seen)
            parts = (torch.zeros_like(some_keys), torch.zeros_like(some_values))
            before = some_keys.shape[1] - (end - start)
            for first in range(start, end, _BLOCK):
                block = slice(first, min(first + _BLOCK, end))
                seen_here = _seen_by(before + first - start, before + block.stop - start, ctx.scores)
                of_queries[:, :, block] = _block_gradients(
                    *(whole[:, :, block] for whole in (queries, slopes, at_outputs)),
                    keys=some_keys[:, seen_here],
                    values=some_values[:, seen_here],
                    of_keys=parts[0][:, seen_here],
                    of_values=parts[1][:, seen_here],
                    scores=ctx.scores,
                )
            _scatter(of_keys, parts[0], seen)
            _scatter(of_values, parts[1], seen)
        return (
            of_queries.view(query.shape).to(query.dtype),
            of_keys[None].to(key.dtype),
            of_values[None].to(value.dtype),
            None,
            None,
            None,
        )


def _block_gradients(
    queries: Tensor,
    slopes: Tensor,
    at_outputs: Tensor,
    *,
    keys: Tensor,
    values: Tensor,
    of_keys: Tensor,
    of_values: Tensor,
    scores: AttentionScores,
) -> Tensor:
    """Gradient of some queries, (groups, heads of each, rows, width); those of what they see are added to
    `of_keys` and `of_values`. Keys end with the last query's own."""
    groups, members, rows, width = queries.shape
    seen = keys.shape[1]
    flat = queries.reshape(groups, members * rows, width)
    slope = slopes.reshape(groups, members * rows, -1)
    scaling = scores.scaling(width)
    products = torch.bmm(flat, keys.transpose(1, 2)).mul_(scaling)
    bends = scores.bend_(products)
    table = products.view(groups, members, rows, seen)
    table[..., seen - rows :].masked_fill_(~causal_mask(0, rows, table.device), -torch.inf)
    if scores.narrows(seen):
        table.masked_fill_(~causal_mask(seen - rows, rows, table.device, scores.window), -torch.inf)
    shares = products.softmax(-1)
    of_values += torch.bmm(shares.transpose(1, 2), slope)
    of_scores = torch.bmm(slope, values.transpose(1, 2))
    of_scores.sub_(at_outputs.reshape(groups, members * rows, 1)).mul_(shares).mul_(scaling)
    if bends is not None:
        of_scores.mul_(bends)
    of_keys += torch.bmm(of_scores.transpose(1, 2), flat)
    return torch.bmm(of_scores, keys).view(queries.shape)


def _seen_by(first: int, end: int, scores: AttentionScores) -> slice:
    """Return which of a segment's keys its queries from the key number `first` up to `end` see."""
    return slice(0 if scores.window is None else max(0, first - scores.window + 1), end)


def segment_mask(keys: int, queries: int, device: torch.device, scores: AttentionScores) -> Tensor | None:
    """Return the mask of a segment's queries, which are the last of the keys; None where each sees all before
    it: among the last tokens of what they see, "causal" is not what SDPA means by it."""
    if not scores.narrows(keys):
        return causal_mask(keys - queries, queries, device) if keys > queries else None
    return causal_mask(keys - queries, queries, device, scores.window)


def joined(whole: Tensor, stretches: Stretches) -> Tensor:
    """Stretches of a tensor (…, tokens, width), one after the other; a view where it is one."""
    parts = [whole[..., stretch, :] for stretch in stretches]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)


def _scatter(whole: Tensor, parts: Tensor, stretches: Stretches) -> None:
    """Add what `joined` gave back to where it was taken."""
    done = 0
    for stretch in stretches:
        length = stretch.stop - stretch.start
        whole[..., stretch, :] += parts[..., done : done + length, :]
        done += length
