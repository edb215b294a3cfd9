"""Blind votes on responses beside each other, in arenas and side by side: one decision, one judgment."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from annotation.choices import FinishReason, Verdict
from annotation.models import Comparison, Completion, CompletionSource, Judgment, Prompt, User
from annotation.record.judgment import JudgmentRecord
from annotation.services.judgments.submission import record_vote
from annotation.services.texts import NewCompletion, record_completions
from training.engine import Answer
from training.models import ArenaBallot, SideBySide, SideBySideAnswer, TurnResponse


@dataclass(frozen=True, slots=True)
class VoteChoice:
    """The decision of one vote. Positions count from 1, in the order in which the responses were shown."""

    verdict: str
    ranks: Mapping[int, int] = field(default_factory=dict)
    """Position → rank, 1 best. Read only for the verdict "ranked". Of three or more the best may be ranked
    alone."""


VOTES = {
    "first": VoteChoice(Verdict.RANKED, {1: 1, 2: 2}),
    "second": VoteChoice(Verdict.RANKED, {1: 2, 2: 1}),
    "equal": VoteChoice(Verdict.EQUAL),
    "both_good": VoteChoice(Verdict.BOTH_GOOD),
    "both_bad": VoteChoice(Verdict.BOTH_BAD),
    "cannot_judge": VoteChoice(Verdict.CANNOT_JUDGE),
}
"""The choices between two responses."""


def record_response(
    *,
    prompt: Prompt,
    source: CompletionSource,
    response: Answer | SideBySideAnswer | TurnResponse,
    sampling: Mapping[str, Any],
    seed: int | None,
) -> Completion:
    """Store a checkpoint's response as a completion; return the stored one if its seed is known already."""
    new = NewCompletion(
        text=response.text,
        sampling=sampling,
        seed=seed,
        finish_reason=FinishReason(response.finish_reason),
        token_count=response.token_count,
    )
    return record_completions(prompt=prompt, source=source, answers=[new])[0]


def record_shown(
    *,
    prompt: Prompt,
    source: CompletionSource,
    response: SideBySideAnswer | TurnResponse,
    sampling: Mapping[str, Any],
    seed: int | None,
) -> Completion:
    """Store a response that people read as a completion, with the text that they read.

    Where the same seed gave another text under other sampling, the completion has its seed in the sampling.
    """
    record = partial(record_response, prompt=prompt, source=source, response=response)
    stored = record(sampling=sampling, seed=seed)
    return stored if stored.text == response.text else record(sampling={**sampling, "seed": seed}, seed=None)


def store_vote(
    *,
    row: ArenaBallot | SideBySide,
    voter: User,
    vote: VoteChoice,
    comparison: Comparison,
    order: Sequence[int],
    idempotency_key: uuid.UUID,
    blind: bool = True,
) -> Judgment:
    """Record the vote as a judgment and note it on the row that showed the responses.

    order: completion ids as shown. Call it in a transaction that holds the row's lock, after a look that it
    has no vote yet. Raises what `record_vote` raises.
    """
    ranks = vote.ranks if vote.verdict == Verdict.RANKED else {}
    row.judgment = record_vote(
        comparison=comparison,
        voter=voter,
        shown=order,
        answer=JudgmentRecord(
            verdict=vote.verdict,
            ranks={str(order[place - 1]): rank for place, rank in ranks.items() if 0 < place <= len(order)},
        ),
        idempotency_key=idempotency_key,
        blind=blind,
    )
    row.save(update_fields=["judgment"])
    return row.judgment
