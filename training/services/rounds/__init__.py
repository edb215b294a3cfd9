"""The state machine that takes a project once around the loop.

`transitions` holds the states and what may follow what; `opening` begins and starts a round, `controls`
stops it and lets it go on, `deciding` promotes, rejects and rolls back; `executor` does its steps;
`triggers` is what happens by itself.
"""

from training.services.rounds.controls import (
    cancel_round,
    discard_round,
    draft_first_round,
    open_first_round,
    open_round,
    pause_round,
    reopen_round,
    resume_round,
    retry_step,
    start_again,
    start_round,
)
from training.services.rounds.deciding import (
    candidate_of,
    promote_round,
    reject_round,
    roll_back,
    settle_decision,
)
from training.services.rounds.executor import advance_round, rounds_with_work, sweep

__all__ = [
    "advance_round",
    "cancel_round",
    "candidate_of",
    "discard_round",
    "draft_first_round",
    "open_first_round",
    "open_round",
    "pause_round",
    "promote_round",
    "reject_round",
    "reopen_round",
    "resume_round",
    "retry_step",
    "roll_back",
    "rounds_with_work",
    "settle_decision",
    "start_again",
    "start_round",
    "sweep",
]
