"""Assignments, decided by guarded updates and constraints, so that no luck is needed.

`next` decides what a person gets: qualification, retest, gold or work; `queue` finds the work;
`slots` counts the places of a comparison; `leases` gives, renews and takes back; `tokens` names
completions on a page. Locks are always taken in the order person, assignment, comparison, tally,
where the person is their row of `AnnotatorTally`.
"""

from annotation.services.assignments.display_order import candidate_token, tokens_of
from annotation.services.assignments.leases import (
    expire_leases,
    expire_leases_now_and_then,
    release_assignment,
    renew_lease,
    skip_assignment,
)
from annotation.services.assignments.next import assign_ahead, assign_next, assign_next_in_transaction
from annotation.services.assignments.slots import retake_slot, take_slot

__all__ = [
    "assign_ahead",
    "assign_next",
    "assign_next_in_transaction",
    "candidate_token",
    "expire_leases",
    "expire_leases_now_and_then",
    "release_assignment",
    "renew_lease",
    "retake_slot",
    "skip_assignment",
    "take_slot",
    "tokens_of",
]
