"""A reward model's scores on a yardstick, and the result as JSON."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from training.contract import ContractError
from training.rlhf.rewards.protocol import Reward
from training.rlhf.yardsticks.figures import Scored
from training.rlhf.yardsticks.items import Item
from training.rlhf.yardsticks.reading import read_items
from training.rlhf.yardsticks.sets import Yardstick


def scored_items(reward: Reward, items: Sequence[Item]) -> tuple[list[Scored], int]:
    """Return the items with their scores, and how many were left out: a response that cannot be scored."""
    prompts = [list(item.prompt) for item in items for _ in item.responses]
    texts = [text for item in items for text in item.responses]
    scores = iter(reward(prompts, texts, [None] * len(texts)))
    scored, unread = [], 0
    for item in items:
        some = [next(scores) for _ in item.responses]
        if not all(score.scored for score in some):
            unread += 1
            continue
        # Rewards of segments add up to the response's.
        values = [score.value + sum(part.value for part in score.segments) for score in some]
        right = len(item.chosen)
        scored.append(Scored(item=item, chosen=tuple(values[:right]), rejected=tuple(values[right:])))
    return scored, unread


def measure(yardstick: Yardstick, reward: Reward, path: Path, *, most: int | None = None) -> dict[str, Any]:
    """Return the result of a reward model on a file of a yardstick.

    most: of its items, drawn with a fixed seed; all where it is left out. Raises `ContractError` for a file
    that cannot be read and where no item can be scored.
    """
    items = read_items(path, yardstick.reader)
    if most is not None and most < len(items):
        items = random.Random(0).sample(items, most)  # noqa: S311 - a sample, not a secret
    scored, unread = scored_items(reward, items)
    if not scored:
        raise ContractError(f"{path.name}: the reward model can score none of its responses")
    return {
        "title": yardstick.title,
        "file_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "items": len(scored),
        "left_out": unread,
        "sampled": most is not None,
        "chance": yardstick.chance["all"],
        "figures": {name: asdict(figure) for name, figure in yardstick.figures(scored).items()},
        "published": [asdict(entry) for entry in yardstick.published],
    }
