"""Outputs of a fine-grained reward model's heads on each segment of a completion.

A head's reward is the log-odds that a segment is faultless, w · h + b with the state h of the segment's last
token and the bias b, which is learned with the head as `name.bias`. So it can be paid to a policy as it is
(Wu et al. 2023): positive where the head takes a segment for good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from training.contract import SegmentHead
from training.contract.segmentation import Granularity, Segment, segment
from training.contract.steps import steps
from training.rlhf.model.backbone import Backbone
from training.rlhf.spans import segment_end_tokens
from training.rlhf.tokens.encoding import Answered
from training.rlhf.tokens.packing import Batch

HeadGranularity = Granularity | Literal["steps"]
"""Units of text that a head may score."""
MIN_WORDS = 5
"""Words that a sub-sentence has at least, as in the code that Wu et al. published."""


class SegmentReward(NamedTuple):
    """Reward of one head for one segment."""

    start: int
    end: int
    """[start, end) of the answer's text, in code points."""
    reward: float
    """Log-odds that the segment is faultless."""


def cut(text: str, granularity: HeadGranularity, answered: Answered) -> list[Segment]:
    """The segments that heads of a granularity score, in training and after it: none of what is masked or
    stripped of the answer. In training a head on steps has those that were labelled (`segments`)."""
    if granularity == "steps":
        return read_of(steps(text), answered)
    return read_of(segment(text, granularity, min_words=MIN_WORDS), answered)


def read_of(segments: Sequence[Segment], answered: Answered) -> list[Segment]:
    """Those of an answer's segments of which anything is read."""
    begin = answered.offsets[0][0] if answered.offsets else 0
    return [part for part in segments if part[1] > begin]


def bias_of(head: str) -> str:
    """Return the name of the parameter that holds a head's bias."""
    return f"{head}.bias"


def rewards_at(backbone: Backbone, adapter: str, head: str, states: Tensor) -> Tensor:
    """(N, hidden) states of segments' last tokens to (N,) rewards, float32."""
    bias = backbone.extra(adapter, bias_of(head))  # noqa: S610
    return backbone.score(adapter, states, head=head) + bias


def read_places(
    batch: Batch, answer: int, answered: Answered, segments: Sequence[Segment], granularity: HeadGranularity
) -> Tensor:
    """Places in a packed row where an answer's segments are read: (segments,) long.

    The last token of each segment; the end token where the segment is the whole answer, as for a score.
    `answer`: the answer's index in the batch. `answered` must have offsets.
    """
    if granularity == "whole":
        return batch.last[answer].expand(len(segments))
    first = int(torch.searchsorted(batch.target_answer, answer))
    ends = segment_end_tokens(answered.offsets, [end for _, end in segments])
    return batch.targets[first + ends.to(batch.targets.device)]


@torch.no_grad()
def segment_rewards(
    backbone: Backbone,
    adapter: str,
    heads: Sequence[SegmentHead],
    states: Tensor,
    batch: Batch,
    *,
    answers: Sequence[Answered],
    texts: Sequence[str],
) -> list[Mapping[str, list[SegmentReward]]]:
    """For every answer of a batch, by head, the rewards of its segments in order.

    states: (T, hidden), of the packed row under the adapter (`methods.reward.encode`). `answers` with offsets
    and `texts` are those of the batch, in its order. An answer without a character has no segments.
    """
    rewards: list[Mapping[str, list[SegmentReward]]] = []
    for index, (answered, text) in enumerate(zip(answers, texts, strict=True)):
        of_heads: dict[str, list[SegmentReward]] = {}
        for head in heads:
            segments = cut(text, head.granularity, answered)
            places = read_places(batch, index, answered, segments, head.granularity)
            values: list[float] = rewards_at(backbone, adapter, head.name, states[places]).tolist()
            of_heads[head.name] = [
                SegmentReward(start, end, value) for (start, end), value in zip(segments, values, strict=True)
            ]
        rewards.append(of_heads)
    return rewards
