"""Statistics of an evaluation: win rates, gains and ratios with their intervals. Uses no database.

A prompt is the unit: several votes on one prompt are no independent evidence. The interval of a win rate is
the one that the decision uses, valid under repeated looks; the others resample prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from training.figures.length_control import length_controlled_win_rate
from training.figures.win_rate_interval import win_rate_interval

# NumPy is imported on use: web processes show figures without computing them.
if TYPE_CHECKING:
    from annotation.agreement.bootstrap import Floats

WIN, TIE, LOSS = 1.0, 0.5, 0.0

LEAST_TOLERANCE = 1e-4
"""Scores this close are always a tie: room for the rounding of scores of 1 to 10."""
NOISE_FACTOR = 4.0
"""The tolerance in units of the largest observed difference, as a few pairs do not show the true maximum."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
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


def win_rate(outcomes: Sequence[float]) -> Figure | None:
    """Return the mean outcome of prompts, one outcome each; None without any.

    The interval is the confidence sequence that `decide` uses.
    """
    if not outcomes:
        return None
    low, high = win_rate_interval(outcomes)
    return Figure(value=sum(outcomes) / len(outcomes), low=low, high=high, prompts=len(outcomes))


def length_controlled(outcomes: Sequence[float], lengths: Sequence[tuple[int, int]]) -> Figure | None:
    """Return the win rate at equal length with its bootstrap interval; None with too few prompts."""
    rate = length_controlled_win_rate(outcomes, lengths)
    if rate is None:
        return None
    value, low, high = rate
    return Figure(value=value, low=low, high=high, prompts=len(outcomes))


def mean_of(values: Sequence[float]) -> Figure | None:
    """Return the mean of one value per prompt; None without any."""
    import numpy as np

    rows = np.array([(value, 1.0) for value in values], dtype=np.float64)
    return _resampled(rows, float(rows[:, 0].mean())) if len(rows) else None


def ratio_of(above: Sequence[float], below: Sequence[float]) -> Figure | None:
    """Return the sum of one column over that of another, a row per prompt; None if undefined."""
    import numpy as np

    rows = np.array(list(zip(above, below, strict=True)), dtype=np.float64)
    if not len(rows) or not rows[:, 1].sum():
        return None
    return _resampled(rows, float(rows[:, 0].sum() / rows[:, 1].sum()))


def _resampled(rows: Floats, value: float) -> Figure:
    from annotation.agreement.bootstrap import percentile_interval, ratio

    low, high = percentile_interval(rows, ratio)
    return Figure(value=value, low=low, high=high, prompts=len(rows))


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


def _json(figure: Figure | None) -> dict[str, Any] | None:
    return None if figure is None else figure.to_json()
