"""The decision on a new policy: promote, reject, or not enough evidence. Pure arithmetic, no Django.

It rests on the confidence sequence of `training.figures.win_rate_interval`, so it may be looked at whenever
another judgment arrives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from training.figures.win_rate_interval import LEVEL, MINIMUM, checked_outcomes, log_capital


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
