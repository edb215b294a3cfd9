"""qa-feedback as 4-way rankings for us and as pairs for TRL: the same questions, answers and verdicts."""

from __future__ import annotations

import json
import os
from itertools import combinations
from pathlib import Path
from typing import Any

from tests.rlhf.runs import ROOT, row
from training.contract import SnapshotRow, with_context


def rankings(count: int, *, context: bool) -> list[SnapshotRow]:
    """The first `count` questions on which a preference was stated, each with its four answers ranked.

    The set states six pair preferences in the order (1,2) (1,3) (1,4) (2,3) (2,4) (3,4): 1 the first
    is better, 2 the second, 0 equal. An answer's rank is 1 plus the number of answers that beat it.
    """
    shared = Path(os.environ.get("RONDO_SHARED", ROOT.parent / "shared"))
    rows: list[SnapshotRow] = []
    for index, item in enumerate(json.loads((shared / "data/qa_feedback/feedback.json").read_text())):
        ranks = [1, 1, 1, 1]
        for (first, second), said in zip(combinations(range(4), 2), item["preference"], strict=True):
            if said:
                ranks[second if said == 1 else first] += 1
        if len(set(ranks)) > 1 and len(rows) < count:
            texts = [item[f"prediction {number}"].strip() for number in range(1, 5)]
            passages = item["passages"] if context else []
            rows.append(
                row(
                    f"qa{index}",
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
        kept = [values["completions"][place] for place in (winner, loser)]
        values |= {"completions": kept, "ranks": {kept[0]["id"]: 1, kept[1]["id"]: 2}}
        pairs.append(SnapshotRow.from_json(values))
    return pairs


def as_pairs(rows: list[SnapshotRow]) -> list[dict[str, Any]]:
    """Every decided pair as TRL reads it: chats, which its tokenizer renders with the model's template."""
    found = []
    for judged in rows:
        chat = [
            {"role": message.role, "content": message.content}
            for message in with_context(judged.messages, judged.context)
        ]
        for winner, loser in decided_pairs(judged):
            texts = [judged.completions[place].text for place in (winner, loser)]
            chosen, rejected = ([{"role": "assistant", "content": text}] for text in texts)
            found.append({"prompt": chat, "chosen": chosen, "rejected": rejected})
    return found
