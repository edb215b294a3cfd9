"""Attention over the segments of a packed row on a CPU, and its derivative, in one piece.

Left to autograd, every segment's slices each cost a zeroed tensor as large as the whole row in the backward
pass, and torch's own backward of scaled dot-product attention takes ten times its forward's time for the
short segments that judgments have. Here the derivative is that of Dao et al. 2022 (FlashAttention, appendix
B.2) by matrix products in float32, on blocks of queries, written where it belongs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from training.rlhf.model import segment_buckets
from training.rlhf.model.segment_buckets import Bucket, Places

_BLOCK = 96
"""Queries at a time in the backward pass: few, so that little is computed for keys that they do not see."""

Stretches = Sequence[slice]


class SegmentedAttention(torch.autograd.Function):
    """(1, heads, T, width) queries, (1, key heads, T, width) keys and values to (1, T, heads, width).

    segments: of each its first place, the place after its last, and the stretches of the row that its last
    token sees, itself included, in order. A token sees them up to itself. buckets: the other segments of the
    row, which are computed many at a time. The gradients of keys and values,
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
        scaling: float | None,
    ) -> Tensor:
        attend = functools.partial(
            F.scaled_dot_product_attention, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
        )
        mixed = torch.empty_like(query.transpose(1, 2), memory_format=torch.contiguous_format)
        for start, end, seen in segments:
            keys, values = joined(key, seen), joined(value, seen)
            before = keys.shape[2] - (end - start)
            # Among the last tokens of what they see, "causal" is not what SDPA means by it.
            causal = (
                {"attn_mask": causal_mask(before, end - start, query.device)}
                if before
                else {"is_causal": True}
            )
            mixed[:, start:end] = attend(query[:, :, start:end], keys, values, **causal).transpose(1, 2)
        ctx.scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        for bucket in buckets:
            mixed[0].index_copy_(
                0, bucket.places, segment_buckets.attend(bucket, query, key, value, ctx.scaling)
            )
        ctx.save_for_backward(query, key, value, mixed)
        ctx.segments, ctx.buckets = segments, buckets
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mixed = ctx.saved_tensors
        _, heads, tokens, width = query.shape
        groups = key.shape[1]
        shape = (groups, heads // groups, tokens, width)
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
                bucket, queries, keys, values, slopes, at_outputs, scaling=ctx.scaling
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
                of_queries[:, :, block] = _block_gradients(
                    *(whole[:, :, block] for whole in (queries, slopes, at_outputs)),
                    keys=some_keys[:, : before + block.stop - start],
                    values=some_values[:, : before + block.stop - start],
                    of_keys=parts[0],
                    of_values=parts[1],
                    scaling=ctx.scaling,
                )
            _scatter(of_keys, parts[0], seen)
            _scatter(of_values, parts[1], seen)
        return (
            of_queries.view(1, heads, tokens, width).to(query.dtype),
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
    scaling: float,
) -> Tensor:
    """Gradient of some queries, (groups, heads of each, rows, width); those of what they see are added to
    `of_keys` and `of_values`. Keys end with the last query's own."""
    groups, members, rows, width = queries.shape
    seen = keys.shape[1]
    flat = queries.reshape(groups, members * rows, width)
    slope = slopes.reshape(groups, members * rows, width)
    scores = torch.bmm(flat, keys.transpose(1, 2)).mul_(scaling).view(groups, members, rows, seen)
    scores[..., seen - rows :].masked_fill_(~causal_mask(0, rows, scores.device), -torch.inf)
    shares = scores.softmax(-1).view(groups, members * rows, seen)
    of_values[:, :seen] += torch.bmm(shares.transpose(1, 2), slope)
    of_scores = torch.bmm(slope, values.transpose(1, 2))
    of_scores.sub_(at_outputs.reshape(groups, members * rows, 1)).mul_(shares).mul_(scaling)
    of_keys[:, :seen] += torch.bmm(of_scores.transpose(1, 2), flat)
    return torch.bmm(of_scores, keys).view(queries.shape)


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


@functools.lru_cache(maxsize=64)
def causal_mask(before: int, length: int, device: torch.device) -> Tensor:
    """Return the causal mask of `length` tokens after `before` others: (length, before + length) booleans."""
    return torch.ones(length, before + length, dtype=torch.bool, device=device).tril(before)
