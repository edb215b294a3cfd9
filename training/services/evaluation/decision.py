"""The decision on a new policy: promote, reject, or not enough evidence. Pure arithmetic, no Django.

By people alone it rests on the confidence sequence of `training.figures.win_rate_interval`, by people and an
evaluator on the e-process of `training.figures.win_rate_with_model`: both may be looked at whenever another
judgment arrives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from training.figures.win_rate_interval import LEVEL, MINIMUM, checked_outcomes, log_capital
from training.figures.win_rate_with_model import Claim, log_evidence, read_answers

LEAST_ANSWERS = 10
"""Prompts that people decided either way before they and a model decide anything."""


class Decision(StrEnum):
    """The verdict of an evaluation on the new policy."""

    PROMOTE = "promote"
    REJECT = "reject"
    NOT_ENOUGH_EVIDENCE = "not_enough_evidence"


def decide(outcomes: Sequence[float], *, minimum: int = MINIMUM, level: float = LEVEL) -> Decision:
    """Decide between a new policy and its parent.

    Args:
        outcomes: one per held-out prompt, in [0, 1]: 1 the new policy wins, 1/2 a tie or identical
            responses, 0 it loses. An outcome must not change once it is included.
        minimum: prompts with an outcome other than 1/2 below which nothing is decided.
        level: confidence of the interval; each wrong verdict has at most the probability (1 − level)/2,
            however often the decision is looked at.

    Returns promote where the interval of the win rate lies above one half, reject where it lies below,
    else not enough evidence. Raises `ValueError` for an outcome outside [0, 1], and for a level outside
    (0, 1).
    """
    values = checked_outcomes(outcomes, level)
    if sum(value != 0.5 for value in values) < minimum:
        return Decision.NOT_ENOUGH_EVIDENCE
    threshold = math.log(2 / (1 - level))
    if log_capital(values, 0.5) >= threshold:
        return Decision.PROMOTE
    if log_capital([1 - value for value in values], 0.5) >= threshold:
        return Decision.REJECT
    return Decision.NOT_ENOUGH_EVIDENCE


def decide_with_model(
    answers: Sequence[tuple[int, float]],
    scores: Sequence[float | None],
    *,
    claim: Claim = "new_prompts",
    level: float = LEVEL,
) -> Decision:
    """Decide between a new policy and its parent by people's outcomes and an evaluator's.

    Args:
        answers: (position in `scores`, outcome by people) in the order in which they came, of prompts drawn
            at random: 1 the new policy wins, 1/2 a tie, 0 it loses.
        scores: the evaluator's outcome of every held-out prompt, 0 to 1; None where it has none.
        claim: "new_prompts" decides about prompts like these, "these_prompts" about these alone.
        level: each wrong verdict has at most the probability (1 − level)/2, however often the decision is
            looked at and whatever the evaluator is worth.

    An evaluator that agrees with people saves answers, one that misleads costs some. Without any score,
    people alone decide, as by `decide`. Raises `ValueError` as `decide` and `read_answers` do, and for
    another claim.
    """
    if claim not in ("new_prompts", "these_prompts"):
        raise ValueError(f"The claim {claim!r} is neither 'new_prompts' nor 'these_prompts'.")
    checked_outcomes([], level)
    read = read_answers(answers, scores)
    outcomes = read.outcomes.tolist()
    if claim == "new_prompts" and all(score is None for score in scores):
        return decide(outcomes, level=level)
    if sum(outcome != 0.5 for outcome in outcomes) < min(LEAST_ANSWERS, len(scores)):
        return Decision.NOT_ENOUGH_EVIDENCE
    threshold = math.log(2 / (1 - level))
    if log_evidence(read, claim=claim) >= threshold:
        return Decision.PROMOTE
    if log_evidence(read.mirrored, claim=claim) >= threshold:
        return Decision.REJECT
    return Decision.NOT_ENOUGH_EVIDENCE
