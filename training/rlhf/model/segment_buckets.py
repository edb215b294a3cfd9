"""Short segments of a packed row, many at a time: attention and its derivative over a padded table of them.

A step of policy optimisation packs hundreds of answers of a few tokens. One call each costs more than the
arithmetic in it, so segments of about the same size are gathered into one batch. What is padded is a few
queries and keys of attention, and no token of any layer beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor

from training.rlhf.model import attention_scores
from training.rlhf.model.attention_scores import Scores

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


def attend(bucket: Bucket, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
    """(1, heads, T, width) queries, (1, key heads, T, width) keys and values to (N, heads, width)."""
    mixed = attention_scores.attend(
        _table(query[0], bucket.queries),
        _table(key[0], bucket.keys),
        _table(value[0], bucket.keys),
        bucket.seen,
        scores,
    )
    return mixed.transpose(1, 2).flatten(0, 1)[bucket.real]


def gradients(
    bucket: Bucket,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    slopes: Tensor,
    at_outputs: Tensor,
    *,
    scores: Scores,
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
