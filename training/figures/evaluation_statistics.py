"""Statistics of an evaluation: win rates, rewards, divergence, and the win rate at equal length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from training.figures.win_rates import win_rate_interval

# NumPy is imported on use.
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from annotation.agreement.intervals import Floats


# ── Win rate at equal length ──
#
# The model is that of Dubois et al. (2024), "Length-Controlled AlpacaEval", for one pair of policies:
#
#     P(win) = σ(θ + φ · tanh(d / s))
#
# with d the difference of the two lengths, s its standard deviation over the prompts, θ the difference in
# quality and φ the judge's length bias. Ties count half a win and half a loss. The win rate at equal
# length is σ(θ).


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


# ── Evaluation ──
#
# A prompt is the unit: several votes on one prompt are no independent evidence. The interval of a win rate is
# the one that the decision uses, valid under repeated looks; the others resample prompts.


# NumPy is imported on use: web processes show figures without computing them.

WIN, TIE, LOSS = 1.0, 0.5, 0.0

LEAST_TOLERANCE = 1e-4
"""Scores this close are always a tie: room for the rounding of scores of 1 to 10."""
NOISE_FACTOR = 4.0
"""The tolerance in units of the largest observed difference, as a few pairs do not show the true maximum."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationFigure:
    """A measured figure with its 95 % interval; no bounds with too few prompts."""

    value: float
    low: float | None
    high: float | None
    prompts: int
    """Number of prompts measured."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any] | None) -> Self | None:
        """Return the figure that `to_json` wrote; None for null."""
        return None if values is None else cls(**values)

    def to_json(self) -> dict[str, Any]:
        """Return the figure as decoded JSON."""
        return asdict(self)


def outcome_of(old: float, new: float, *, tolerance: float = 0.0) -> float:
    """Return the outcome for the new response: 1 a higher score, 0 a lower one, 1/2 within the tolerance."""
    if abs(new - old) <= tolerance:
        return TIE
    return WIN if new > old else LOSS


def tolerance_of(noise: Sequence[float]) -> dict[str, float | int]:
    """Return the tolerance within which two scores tie, with what it rests on.

    Args:
        noise: one largest difference for each pair that was scored a second time in other batches.
    """
    measured = max(noise, default=0.0)
    return {
        "value": max(LEAST_TOLERANCE, NOISE_FACTOR * measured),
        "measured": measured,
        "pairs": len(noise),
        "floor": LEAST_TOLERANCE,
        "factor": NOISE_FACTOR,
    }


def prompt_outcomes(votes: Sequence[Sequence[float]]) -> list[float]:
    """Return one outcome for each prompt with votes: 1 where most prefer the new policy, 0 where most prefer
    the parent, 1/2 where they balance."""
    return [outcome_of(TIE, sum(of_prompt) / len(of_prompt)) for of_prompt in votes if of_prompt]


def win_rate(outcomes: Sequence[float]) -> EvaluationFigure | None:
    """Return the mean outcome of prompts, one outcome each; None without any.

    The interval is the confidence sequence that `decide` uses.
    """
    if not outcomes:
        return None
    low, high = win_rate_interval(outcomes)
    return EvaluationFigure(value=sum(outcomes) / len(outcomes), low=low, high=high, prompts=len(outcomes))


def length_controlled(
    outcomes: Sequence[float], lengths: Sequence[tuple[int, int]]
) -> EvaluationFigure | None:
    """Return the win rate at equal length with its bootstrap interval; None with too few prompts."""
    rate = length_controlled_win_rate(outcomes, lengths)
    if rate is None:
        return None
    value, low, high = rate
    return EvaluationFigure(value=value, low=low, high=high, prompts=len(outcomes))


def mean_of(values: Sequence[float]) -> EvaluationFigure | None:
    """Return the mean of one value per prompt; None without any."""
    import numpy as np

    rows = np.array([(value, 1.0) for value in values], dtype=np.float64)
    return _resampled(rows, float(rows[:, 0].mean())) if len(rows) else None


def ratio_of(above: Sequence[float], below: Sequence[float]) -> EvaluationFigure | None:
    """Return the sum of one column over that of another, a row per prompt; None if undefined."""
    import numpy as np

    rows = np.array(list(zip(above, below, strict=True)), dtype=np.float64)
    if not len(rows) or not rows[:, 1].sum():
        return None
    return _resampled(rows, float(rows[:, 0].sum() / rows[:, 1].sum()))


def _resampled(rows: Floats, value: float) -> EvaluationFigure:
    from annotation.agreement.intervals import percentile_interval, ratio

    low, high = percentile_interval(rows, ratio)
    return EvaluationFigure(value=value, low=low, high=high, prompts=len(rows))


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptMeasurements:
    """Measurements of both answers to one prompt. Pairs are (parent, new)."""

    texts: tuple[str, str]
    reward: tuple[float, float] | None = None
    heads: Mapping[str, tuple[float, float]]
    kl: float | None = None
    """KL divergence of the new policy from its base over its whole answer, in nats."""
    rules: Mapping[str, tuple[float | None, float | None]]

    @property
    def same(self) -> bool:
        """Return whether the responses are identical but for white space, so that no judge can distinguish
        them."""
        return self.texts[0].strip() == self.texts[1].strip()

    def outcome(self, tolerance: float) -> float | None:
        """Return the outcome by the reward model; a tie for identical responses."""
        if self.same:
            return TIE
        return None if self.reward is None else outcome_of(*self.reward, tolerance=tolerance)

    def win_chance(self, tolerance: float) -> float | None:
        """Return the probability that the new response wins by the reward model (Bradley-Terry): 1/2 for a
        tie, None without scores."""
        if self.same:
            return TIE
        if self.reward is None:
            return None
        difference = self.reward[1] - self.reward[0]
        return TIE if abs(difference) <= tolerance else 0.5 * (1 + math.tanh(difference / 2))

    def gain(self, tolerance: float) -> float | None:
        """Return the reward gain of the new response; exactly 0 for a tie."""
        if self.outcome(tolerance) == TIE:
            return 0.0
        return None if self.reward is None else self.reward[1] - self.reward[0]


def outcomes_of(results: Sequence[PromptMeasurements], tolerance: float) -> list[float]:
    """Return the outcomes by the reward model, one for each prompt that has one."""
    outcomes = (result.outcome(tolerance) for result in results)
    return [outcome for outcome in outcomes if outcome is not None]


def figures_of(results: Sequence[PromptMeasurements], *, noise: Sequence[float] = ()) -> dict[str, Any]:
    """Return all figures of an evaluation as decoded JSON, format 2.

    `win_rate`, `length_controlled` and `reward` by the reward model, `heads` by name of the head, `rules` by
    name of the rule: each with the means of both and the gain; `kl`, `length_ratio`; null without
    measurements. Identical responses are ties, and so are scores within the `tolerance`; a tie gains 0.
    """
    tolerance = tolerance_of(noise)
    within = float(tolerance["value"])
    judged = [result for result in results if result.reward is not None]
    rewards = [_pair(result, result.reward) for result in judged if result.reward is not None]
    outcomes = outcomes_of(judged, within)
    kls = [result.kl for result in results if result.kl is not None]
    lengths = [(len(result.texts[0]), len(result.texts[1])) for result in results]
    return {
        "prompts": len(results),
        "same": sum(result.same for result in results),
        "tied": sum(not result.same and result.outcome(within) == TIE for result in judged),
        "tolerance": tolerance,
        "win_rate": _json(win_rate(outcomes)),
        "length_controlled": _json(
            length_controlled(outcomes, [(len(result.texts[0]), len(result.texts[1])) for result in judged])
        ),
        "reward": _compared(rewards, within),
        "heads": {
            name: _compared(
                [_pair(result, result.heads[name]) for result in results if name in result.heads], within
            )
            for name in sorted({name for result in results for name in result.heads})
        },
        "kl": _json(mean_of(kls)),
        "length_ratio": _json(ratio_of([new for _, new in lengths], [old for old, _ in lengths])),
        "rules": {
            name: _ruled([result.rules[name] for result in results if name in result.rules])
            for name in sorted({name for result in results for name in result.rules})
        },
    }


def _pair(result: PromptMeasurements, pair: tuple[float, float]) -> tuple[float, float]:
    """Return a head's scores of both responses; identical responses have one score."""
    return (pair[0], pair[0]) if result.same else pair


def _compared(pairs: Sequence[tuple[float, float]], tolerance: float) -> dict[str, Any] | None:
    if not pairs:
        return None
    outcomes = [outcome_of(*pair, tolerance=tolerance) for pair in pairs]
    gains = [
        0.0 if outcome == TIE else new - old for outcome, (old, new) in zip(outcomes, pairs, strict=True)
    ]
    return {
        "parent": _json(mean_of([old for old, _ in pairs])),
        "checkpoint": _json(mean_of([new for _, new in pairs])),
        "gain": _json(mean_of(gains)),
        "win_rate": _json(win_rate(outcomes)),
    }


def _ruled(pairs: Sequence[tuple[float | None, float | None]]) -> dict[str, Any] | None:
    """Return `_compared` for the prompts where the rule scored both texts."""
    known = [(old, new) for old, new in pairs if old is not None and new is not None]
    return _compared(known, 0.0)


def _json(figure: EvaluationFigure | None) -> dict[str, Any] | None:
    return None if figure is None else figure.to_json()
