"""qa-feedback as 4-way rankings for us and as pairs for TRL: the same questions, answers and verdicts."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

from tests.data_sets import data_folder
from tests.rlhf.runs import qa_feedback_rankings, row
from training.contract.snapshot import SnapshotRow, with_context


def rankings(count: int, *, context: bool) -> list[SnapshotRow]:
    """The first `count` questions on which a preference was stated, each with its four answers ranked."""
    rows: list[SnapshotRow] = []
    for name, item, ranks in islice(qa_feedback_rankings(data_folder()), count):
        texts = [item[f"prediction {number}"].strip() for number in range(1, 5)]
        passages = item["passages"] if context else []
        rows.append(
            row(
                name,
                texts,
                ranks,
                prompt=item["question"],
                context=[{"title": title, "sentences": sentences} for title, *sentences in passages],
            )
        )
    return rows


def decided_pairs(judged: SnapshotRow) -> list[tuple[int, int]]:
    """The places (winner, loser) of every pair that a ranking decides."""
    ranks = [judged.ranks[completion.id] for completion in judged.completions]
    places = range(len(ranks))
    return [(a, b) for a in places for b in places if ranks[a] < ranks[b]]


def one_pair_each(rows: list[SnapshotRow]) -> list[SnapshotRow]:
    """Of each ranking its first decided pair alone, as a comparison of two."""
    pairs = []
    for judged in rows:
        winner, loser = decided_pairs(judged)[0]
        values = json.loads(judged.to_json())
        completions = [values["completions"][place] for place in (winner, loser)]
        values |= {"completions": completions, "ranks": {completions[0]["id"]: 1, completions[1]["id"]: 2}}
        pairs.append(SnapshotRow.from_json(values))
    return pairs


def as_pairs(rows: list[SnapshotRow]) -> list[dict[str, Any]]:
    """Every decided pair as TRL reads it: chats, which its tokenizer renders with the model's template."""
    pairs = []
    for judged in rows:
        chat = [
            {"role": message.role, "content": message.content}
            for message in with_context(judged.messages, judged.context)
        ]
        for winner, loser in decided_pairs(judged):
            texts = [judged.completions[place].text for place in (winner, loser)]
            chosen, rejected = ([{"role": "assistant", "content": text}] for text in texts)
            pairs.append({"prompt": chat, "chosen": chosen, "rejected": rejected})
    return pairs
