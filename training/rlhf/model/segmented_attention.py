"""Attention over the segments of a packed row on a CPU, and its derivative, in one piece.

Left to autograd, every segment's slices each cost a zeroed tensor as large as the whole row in the backward
pass, and torch's own backward of scaled dot-product attention takes ten times its forward's time for the
short segments that judgments have. Here the derivative is that of Dao et al. 2022 (FlashAttention, appendix
B.2) by matrix products in float32, on blocks of queries, written where it belongs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from training.rlhf.model import attention_scores, segment_buckets
from training.rlhf.model.attention_scores import Scores, causal_mask
from training.rlhf.model.segment_buckets import Bucket, Places

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
        scores: Scores,
    ) -> Tensor:
        _, heads, tokens, _ = query.shape
        mixed = query.new_empty(1, tokens, heads, value.shape[-1])
        for start, end, seen in segments:
            keys, values = joined(key, seen), joined(value, seen)
            mask = segment_mask(keys.shape[2], end - start, query.device, scores)
            some = attention_scores.attend(query[:, :, start:end], keys, values, mask, scores)
            mixed[:, start:end] = some.transpose(1, 2)
        for bucket in buckets:
            mixed[0].index_copy_(0, bucket.places, segment_buckets.attend(bucket, query, key, value, scores))
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
            here = segment_buckets.gradients(
                bucket, queries, keys, values, slopes, at_outputs, scores=ctx.scores
            )
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
    scores: Scores,
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


def _seen_by(first: int, end: int, scores: Scores) -> slice:
    """Return which of a segment's keys its queries from the key number `first` up to `end` see."""
    return slice(0 if scores.window is None else max(0, first - scores.window + 1), end)


def segment_mask(keys: int, queries: int, device: torch.device, scores: Scores) -> Tensor | None:
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
