"""The guard of a run: is the policy now worse than some steps ago? Pure arithmetic, no Django.

People compare responses of both, blind: 1 where the policy of now wins, 0 where it loses, 1/2 for a tie.
After every answer two gamblers bet (`win_rates.log_capital`, stakes spread evenly): one that the win
rate lies below one half, one that it lies above `NOT_WORSE`. Were a claim wrong, its capital would exceed 1/α
at any time with probability at most α (Ville's inequality), so the answers may be looked at one by one.

    worse   the first holds 1/α, α = `LEVEL` over the questions that a run's pairs allow
    fine    now wins at least as often as it loses, and the second holds 1/`ACCEPTED`

With 40 pairs, by the true win rate of now (exact, `tests/training/rounds/test_guard_figures.py`): at 0.1 it
is called worse in 99.6 % of the questions after 15 pairs on average, at 0.2 in 81 %, at 0.5 in 0.5 %; it is
called fine at 0.5 in 65 % after 25 pairs, at 0.7 in 99.8 % after 9; else the question stays undecided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from training.contract.guard import MOST_PAIRS, PAIRS_AT_ONCE
from training.figures.win_rates import log_capital

LEVEL = 0.05
"""Probability at most that a run whose policy never becomes worse is called worse."""
NOT_WORSE = 0.3
"""Win rate of now that the answers must show to be too low a guess before the run goes on."""
ACCEPTED = 0.1
"""Probability at most that a policy with that win rate or a lower one is called fine."""

_WORSE = math.log(MOST_PAIRS / PAIRS_AT_ONCE / LEVEL)
_FINE = math.log(1 / ACCEPTED)
_EVENLY = 1.0


class GuardFinding(StrEnum):
    """What people's answers to a question show."""

    FINE = "fine"
    WORSE = "worse"
    OPEN = "open"


def finding(outcomes: Sequence[float]) -> GuardFinding:
    """Return what the outcomes of now against then show; each in [0, 1], in any order."""
    mirrored = [1 - outcome for outcome in outcomes]
    if log_capital(mirrored, 0.5, shape=_EVENLY) >= _WORSE:
        return GuardFinding.WORSE
    if sum(outcomes) < len(outcomes) / 2 or log_capital(outcomes, NOT_WORSE, shape=_EVENLY) < _FINE:
        return GuardFinding.OPEN
    return GuardFinding.FINE
