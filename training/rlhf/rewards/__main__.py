"""Scores texts by rules, without torch: JSON on standard input, JSON on standard output.

    python -m training.rlhf.rewards < request.json

Request: `rules`, a list of reward parts; `rows`, a list of objects with `messages` (role and content),
`completion` and `reference`. Answer: `scores`, by name of the rule a list with, for each row, an object
with `value` (null where it cannot be scored) and `reason`; or `error`, with what is wrong with a rule.
Every reward bounds its own time and memory for one text; whoever starts this bounds the whole.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from annotation.record.base import decode
from training.contract import ContractError
from training.contract.methods.policy import RewardPart
from training.contract.snapshot import Message
from training.rlhf.rewards.protocol import Guarded
from training.rlhf.rewards.text_rewards import KINDS_OF_TEXTS, reward_of_texts


def score(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a request. Raises `ContractError` for a rule that cannot be built."""
    parts = [decode(RewardPart, rule, "rule") for rule in request["rules"]]
    rows = request["rows"]
    chats = [
        [Message(role=turn["role"], content=turn["content"]) for turn in row["messages"]] for row in rows
    ]
    texts = [row["completion"] for row in rows]
    references = [row["reference"] for row in rows]
    answer: dict[str, Any] = {}
    for part in parts:
        if part.kind not in KINDS_OF_TEXTS:
            raise ContractError(f"rule {part.name!r}: kind {part.kind!r} is not computed from texts alone")
        reward = reward_of_texts(part)
        try:
            scores = Guarded(reward)(chats, texts, references)
        finally:
            close = getattr(reward, "close", None)
            if close is not None:
                close()
        answer[part.name] = [
            {"value": result.value if result.scored else None, "reason": result.reason} for result in scores
        ]
    return {"scores": answer}


def main() -> None:
    """Read the request, write the answer."""
    try:
        answer = score(json.load(sys.stdin))
    except ContractError as error:
        answer = {"error": str(error)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
