"""The win rate at equal length: the new policy's, with the effect of length removed.

The model is that of Dubois et al. (2024), "Length-Controlled AlpacaEval", for one pair of policies:

    P(win) = σ(θ + φ · tanh(d / s))

with d the difference of the two lengths, s its standard deviation over the prompts, θ the difference in
quality and φ the judge's length bias. Ties count half a win and half a loss. The win rate at equal
length is σ(θ).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

LEAST_PROMPTS = 10
"""Fewer prompts do not support two parameters."""
_PENALTY = 0.05
"""Weight of the squared parameters: keeps them finite where every win is the longer response."""
_STEPS = 50
_RESAMPLES = 500
_SEED = 20_240_404


def length_controlled_win_rate(
    outcomes: Sequence[float], lengths: Sequence[tuple[int, int]]
) -> tuple[float, float, float] | None:
    """Return the win rate at equal length with a 95 % bootstrap interval over prompts.

    Args:
        outcomes: one per prompt: 1 the new policy wins, 1/2 a tie, 0 it loses.
        lengths: one pair per prompt, in characters: (parent's response, new policy's response).

    Returns (value, low, high), or None with fewer than `LEAST_PROMPTS` prompts that are no ties. Raises
    `ValueError` where the two differ in number.
    """
    import numpy as np
    from scipy.special import expit

    if len(outcomes) != len(lengths):
        raise ValueError(f"{len(outcomes)} outcomes do not fit {len(lengths)} pairs of lengths.")
    if sum(outcome != 0.5 for outcome in outcomes) < LEAST_PROMPTS:
        return None
    wins = np.asarray(outcomes, dtype=np.float64)
    differences = np.array([new - old for old, new in lengths], dtype=np.float64)
    scale = float(differences.std())
    tastes = np.tanh(differences / scale) if scale else np.zeros_like(differences)
    rows = np.random.default_rng(_SEED).integers(0, len(wins), size=(_RESAMPLES, len(wins)))
    resampled = _qualities(wins[rows], tastes[rows])
    low, high = np.percentile(expit(resampled), [2.5, 97.5])
    value = expit(_qualities(wins[None, :], tastes[None, :]))[0]
    return float(value), float(low), float(high)


def _qualities(wins: npt.NDArray[np.float64], tastes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return θ of each row of samples (B, N), by Newton's method on the penalised likelihood, which is
    concave."""
    import numpy as np
    from scipy.special import expit

    quality, taste = np.zeros(len(wins)), np.zeros(len(wins))
    for _ in range(_STEPS):
        chances = expit(quality[:, None] + taste[:, None] * tastes)
        errors, weights = wins - chances, chances * (1 - chances)
        slope_quality = errors.sum(1) - _PENALTY * quality
        slope_taste = (errors * tastes).sum(1) - _PENALTY * taste
        curve_quality = weights.sum(1) + _PENALTY
        curve_taste = (weights * tastes**2).sum(1) + _PENALTY
        cross = (weights * tastes).sum(1)
        determinant = curve_quality * curve_taste - cross**2
        step_quality = (curve_taste * slope_quality - cross * slope_taste) / determinant
        step_taste = (curve_quality * slope_taste - cross * slope_quality) / determinant
        # A bounded step: far from the optimum the likelihood is flat and a full step overshoots.
        quality += np.clip(step_quality, -2, 2)
        taste += np.clip(step_taste, -2, 2)
        if max(np.abs(step_quality).max(), np.abs(step_taste).max()) < 1e-10:
            break
    return quality
