"""The interval of a win rate, valid at every number of prompts at once. Pure arithmetic, no Django.

Each held-out prompt gives one outcome in [0, 1]: 1 where the new policy's response wins, 0 where it loses,
1/2 for a tie. The interval of the mean outcome is a confidence sequence: it holds at every number of prompts
at once, so a decision may be looked at whenever another judgment arrives. It is the betting construction of
Waudby-Smith & Ramdas (2024), "Estimating means of bounded random variables by betting". For a candidate mean
m, the capital of a gambler who bets that the mean is larger is

    K(m) = ∫ Π_i (1 + (2q − 1) · (x_i − m) / m) f(q) dq

with f the density of Beta(5, 5) on (1/2, 1], a spread of bets that suits win rates of 55 to 80 %. If m is
the true mean, K(m) exceeds 1/α at any time with probability at most α (Ville's inequality). The lower bound
is the smallest m whose capital stays below 2/(1 − level); the upper bound mirrors it. At m = 1/2 a tie
neither wins nor loses a bet, so the decision rests on the prompts that differ, as in a sign test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

# NumPy is imported on use: web processes show decisions without computing them.
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MINIMUM = 20
"""Prompts on which the policies must differ before anything is decided."""
LEVEL = 0.95
_BET_SHAPE = 5.0
_BETS = 512
_BISECTIONS = 40
_SETTLED = 12
"""Successive sizes that must reach the power: a discrete test's power is not monotone in its size."""
_MOST_PROMPTS = 20_000


def win_rate_interval(outcomes: Sequence[float], *, level: float = LEVEL) -> tuple[float, float]:
    """Return the bounds of the win rate, valid at every number of outcomes at once; (0, 1) without any.

    One half lies outside exactly where `decide` with a minimum of 0 decides. Raises as `decide` does.
    """
    values = checked_outcomes(outcomes, level)
    low = _lower_bound(values, level)
    high = 1 - _lower_bound([1 - value for value in values], level)
    return low, high


def prompts_needed(
    win_rate: float = 0.7, *, level: float = LEVEL, power: float = 0.8, tie_rate: float = 0.0
) -> int:
    """Return the number of held-out prompts that show a true win rate with the given probability.

    Args:
        win_rate: of the new policy, ties counting half; above or below one half, the same.
        power: probability that `decide` reaches the right verdict.
        tie_rate: share of prompts that are expected to tie; the others decide.

    The number of deciding prompts is exact (binomial, one look at the end); the expected share of ties is
    then added. Raises `ValueError` for rates that contradict each other, and where more than 20,000 prompts
    were needed.
    """
    if not 0 <= tie_rate < 1 or not 0 < power < 1 or not 0 < level < 1:
        raise ValueError("tie_rate must lie in [0, 1), power and level in (0, 1).")
    wins = (max(win_rate, 1 - win_rate) - tie_rate / 2) / (1 - tie_rate)
    if not 0.5 < wins <= 1:
        raise ValueError(f"A win rate of {win_rate} with a tie rate of {tie_rate} shows no difference.")
    deciding = _deciding_prompts(round(wins, 6), level, power)
    return math.ceil(deciding / (1 - tie_rate))


@lru_cache(maxsize=64)
def win_rate_shown(prompts: int, *, level: float = LEVEL, power: float = 0.8) -> float | None:
    """Return the least true win rate that so many deciding prompts show with a probability of `power`.

    The inverse of `prompts_needed`. None where they are fewer than the minimum of a decision, or even winning
    all of them shows nothing.
    """
    from scipy.special import bdtri

    if prompts < MINIMUM or not _shows(prompts, 0, level):
        return None
    few, many = 0, prompts
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if _shows(prompts, middle, level) else (few, middle)
    return 1 - float(bdtri(few, prompts, power))


@lru_cache(maxsize=64)
def _deciding_prompts(wins: float, level: float, power: float) -> int:
    from scipy.special import bdtr

    reached = 0
    most_losses = -1
    for size in range(1, _MOST_PROMPTS + 1):
        # One more prompt allows at most one more loss.
        if _shows(size, most_losses + 1, level):
            most_losses += 1
        enough = most_losses >= 0 and bdtr(most_losses, size, 1 - wins) >= power
        reached = reached + 1 if enough else 0
        if reached == _SETTLED:
            return max(size - _SETTLED + 1, MINIMUM)
    raise ValueError(f"More than {_MOST_PROMPTS} prompts would be needed.")


def _shows(size: int, losses: int, level: float) -> bool:
    """Return whether `losses` among `size` deciding prompts still promote, by the capital's closed form.

    Without ties the integrand is (2q)^W (2(1 − q))^L, so the integral is an incomplete beta function.
    """
    from scipy.special import betaincc, betaln

    first, second = size - losses + _BET_SHAPE, losses + _BET_SHAPE
    log_capital = (
        (size + 1) * math.log(2)
        + betaln(first, second)
        - betaln(_BET_SHAPE, _BET_SHAPE)
        + math.log(max(float(betaincc(first, second, 0.5)), 1e-300))
    )
    return losses <= size and bool(log_capital >= math.log(2 / (1 - level)))


def checked_outcomes(outcomes: Sequence[float], level: float) -> list[float]:
    if not 0 < level < 1:
        raise ValueError(f"The level {level} does not lie between 0 and 1.")
    values = [float(outcome) for outcome in outcomes]
    for place, value in enumerate(values):
        if not 0 <= value <= 1:
            raise ValueError(f"Outcome {place} is {value}: give 1 for a win, 0.5 for a tie, 0 for a loss.")
    return values


def _lower_bound(values: Sequence[float], level: float) -> float:
    """Return the smallest mean that the bets on a larger one do not refute; the capital falls as the mean
    rises."""
    threshold = math.log(2 / (1 - level))
    refuted, possible = 0.0, math.fsum(values) / len(values) if values else 0.0
    if not possible:
        return 0.0
    for _ in range(_BISECTIONS):
        middle = (refuted + possible) / 2
        if log_capital(values, middle) >= threshold:
            refuted = middle
        else:
            possible = middle
    return refuted


def log_capital(values: Sequence[float], mean: float, *, shape: float = _BET_SHAPE) -> float:
    """Return the log capital of a gambler who bets that the mean is larger than `mean` in (0, 1).

    shape: of the spread of bets; with 1 all stakes are alike, for win rates far from one half.
    """
    import numpy as np

    stakes, log_weights = _bets(shape)
    distinct, counts = np.unique(np.asarray(values, dtype=np.float64), return_counts=True)
    with np.errstate(divide="ignore"):
        gains = np.log1p(stakes[:, None] * ((distinct - mean) / mean)[None, :])
    exponents = log_weights + gains @ counts
    top = exponents.max()
    return float(top + np.log(np.exp(exponents - top).sum()))


@lru_cache(maxsize=2)
def _bets(shape: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the stakes 2q − 1 at the nodes of a Gauss-Legendre rule, with the logarithms of their
    weights."""
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(_BETS)
    stakes = (nodes + 1) / 2
    # Beta(5, 5) at q = (1 + stake) / 2 is proportional to (1 − stake²)⁴.
    density = (1 - stakes**2) ** (shape - 1) * weights
    return stakes, np.log(density / density.sum())
