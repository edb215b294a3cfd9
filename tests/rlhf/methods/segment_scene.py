"""Judgments with flagged segments and missing information, and the reward of one token by hand."""

from collections.abc import Sequence
from typing import Any

import torch

from tests.rlhf.runs import row
from training.contract.methods.reward import SegmentHead
from training.rlhf.data import Examples, build_examples, only_teaching
from training.rlhf.methods.reward import RewardModelling
from training.rlhf.model.backbone import Backbone
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import pack

QUESTION = "What is the colour of the sky?"
"""The question of `row` by default."""
CPU = torch.device("cpu")
GOOD = "The sun rises in the east."
BAD = " A policy gives no answer ever."
FAULTS = SegmentHead(name="faults", categories=("wrong",))
ONLY_FAULTS: dict[str, Any] = {"loss": "none", "segments": (FAULTS,)}


def span(name: str, text: str, quote: str, category: str = "wrong", answer: int = 0) -> dict[str, Any]:
    """A flag on the first place where `quote` stands in answer `answer` of judgment `name`."""
    start = text.index(quote)
    return {
        "completion": f"{name}.{answer}",
        "category": category,
        "start": start,
        "end": start + len(quote),
        "quote": quote,
    }


def marked(name: str, texts: list[str], *, read: tuple[int, ...] = (0,), **more: Any):
    """One judgment without a ranking whose answers `read` were read; every BAD sentence has a flag."""
    spans = [
        span(name, text, BAD.strip(), answer=place)
        for place, text in enumerate(texts)
        if BAD.strip() in text and place in read
    ]
    return row(
        name,
        texts,
        [0] * len(texts),
        verdict="not_asked",
        spans=spans,
        read_for_spans=[f"{name}.{place}" for place in read],
        **more,
    )


def examples_of(backbone: Backbone, method: RewardModelling, *rows: Any) -> Examples:
    return build_examples(rows, backbone.tokenizer, max_tokens=256, context=False, labels=method.wanted)


def teaching(method: RewardModelling, examples: Examples) -> Examples:
    """As a run does it."""
    return only_teaching(examples, lambda example: any(method.weights(example).values()), method.wanted)


def part_of(method: RewardModelling, examples: list[Example], name: str) -> torch.Tensor:
    return method.outcome(pack(examples, device=CPU), examples, dropout=False).parts[name].loss


def reward_by_hand(backbone: Backbone, ids: Sequence[int], place: int, head: str = "faults") -> float:
    """w · h + b at one token of one row that is not packed."""
    alone = torch.tensor([tuple(ids)])
    with torch.no_grad(), backbone.using("reward"):
        state = backbone.hidden_states(alone, torch.ones_like(alone)).states[0, place]
    state_of = backbone.head_state("reward")
    return float(state_of[head][0] @ state.float() + state_of[f"{head}.bias"][0])


def lacking(name: str, texts: list[str], lacks: list[int], **more: Any):
    """A judgment all of whose answers were read for what is missing; answer i lacks `lacks[i]` things."""
    missing = [
        {"completion": f"{name}.{place}", "category": category}
        for place, count in enumerate(lacks)
        for category in (["major"] * count)
    ]
    read = [f"{name}.{place}" for place in range(len(texts))]
    return row(
        name,
        texts,
        [0] * len(texts),
        verdict="not_asked",
        **{"missing": missing, "read_for_missing": read, **more},
    )
