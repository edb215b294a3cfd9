"""Several rewards as one: a weighted sum, each part normalised and clipped if wished."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypedDict

from training.rlhf.rewards.protocol import Chat, Guarded, Reference, Reward, Score, SegmentScore

_LEAST_DEVIATION = 1e-8


class StatisticsState(TypedDict):
    """State of running statistics: plain numbers for a run's state file."""

    count: int
    mean: float
    squares: float


class PartState(TypedDict):
    """Running statistics of one part."""

    values: StatisticsState
    segments: StatisticsState


class RunningStatistics:
    """Mean and standard deviation of all numbers seen, batch by batch. Chan et al. 1979, equation 1.5."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self._squares = 0.0

    def add(self, numbers: Sequence[float]) -> None:
        """Take a batch in."""
        if not numbers:
            return
        mean = math.fsum(numbers) / len(numbers)
        squares = math.fsum((number - mean) ** 2 for number in numbers)
        both = self.count + len(numbers)
        apart = mean - self.mean
        self._squares += squares + apart**2 * self.count * len(numbers) / both
        self.mean += apart * len(numbers) / both
        self.count = both

    @property
    def deviation(self) -> float:
        """Standard deviation of the sample; 0 before the second number."""
        return math.sqrt(self._squares / (self.count - 1)) if self.count > 1 else 0.0

    def standardised(self, number: float) -> float:
        """(number − mean) / deviation; 0 where nothing has varied yet."""
        deviation = self.deviation
        return (number - self.mean) / deviation if deviation > _LEAST_DEVIATION else 0.0

    def state_dict(self) -> StatisticsState:
        """Count, mean and sum of squares about it."""
        return {"count": self.count, "mean": self.mean, "squares": self._squares}

    def load_state_dict(self, state: StatisticsState) -> None:
        """Go on where `state_dict` was taken."""
        self.count, self.mean, self._squares = int(state["count"]), state["mean"], state["squares"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One reward in a sum."""

    name: str
    reward: Reward
    weight: float = 1.0
    normalise: bool = False
    """Less the running mean, divided by the running standard deviation, of all its scores so far,
    this batch's included. For parts on scales of their own, such as learned reward models."""
    clip: float | None = None
    """Cut to ± this, after normalising and before weighting."""
    required: bool = False
    """A completion that this part cannot score cannot be scored at all. Otherwise the part is left
    out of its sum: for parts that serve only some of the prompts."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight):
            raise ValueError(f"weight {self.weight} of {self.name!r} must be finite")
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"clip {self.clip} of {self.name!r} must be positive, or None")


@dataclass(frozen=True, slots=True)
class Combined:
    """A batch's rewards, and what they are made of."""

    totals: list[Score]
    parts: dict[str, list[Score]]
    """As each part gave them: before normalising, clipping and weighting."""


class Combination:
    """Σ_k w_k R_k over the parts, itself a reward.

    A segment's reward is weighted, and normalised and clipped on its own, like the whole's. What
    a part cannot score is left out, never called 0, and counted in `unscored`; so is what a part
    raises for (see `Guarded`). A completion that no part can score cannot be scored.
    """

    def __init__(self, parts: Iterable[Part], *, clip: float | None = None) -> None:
        """`clip` cuts the sum of a completion's values to ± this; segments are cut by their parts alone."""
        self.parts = tuple(parts)
        names = [part.name for part in self.parts]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"a combination needs parts with names of their own; got {names}")
        if clip is not None and clip <= 0:
            raise ValueError(f"clip {clip} must be positive, or None")
        self._clip = clip
        self._rewards = {part.name: Guarded(part.reward) for part in self.parts}
        self._values = {name: RunningStatistics() for name in names}
        self._segments = {name: RunningStatistics() for name in names}
        self.learning = True
        """True if scores enter the running statistics; turn it off to score held-out prompts."""
        self.unscored: Counter[str] = Counter()
        """Number of completions that each part could not score, since the start."""

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        return self.combine(prompts, completions, references).totals

    def combine(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> Combined:
        """Return the totals, with the scores of each part."""
        return self.combined(self.scores(prompts, completions, references))

    def scores(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> dict[str, list[Score]]:
        """Return the scores of each part, before normalising, clipping and weighting."""
        if not completions:
            return {name: [] for name in self._rewards}
        return {name: reward(prompts, completions, references) for name, reward in self._rewards.items()}

    def combined(self, parts: dict[str, list[Score]]) -> Combined:
        """Return the totals of what `scores` gave, which joins the running statistics."""
        for name, scores in parts.items():
            self.unscored[name] += sum(not score.scored for score in scores)
            if self.learning:
                self._values[name].add([score.value for score in scores if score.scored])
                self._segments[name].add(
                    [segment.value for score in scores if score.scored for segment in score.segments]
                )
        rows = [
            {name: scores[index] for name, scores in parts.items()}
            for index in range(len(parts[self.parts[0].name]))
        ]
        return Combined([self._total(row) for row in rows], parts)

    @property
    def failures(self) -> dict[str, Counter[str]]:
        """Return each part's errors and their counts since the start."""
        return {name: reward.failures for name, reward in self._rewards.items()}

    def close(self) -> None:
        """End what parts keep open: a process, connections."""
        for part in self.parts:
            if callable(close := getattr(part.reward, "close", None)):
                close()

    def _total(self, scores: dict[str, Score]) -> Score:
        missing = [part.name for part in self.parts if not scores[part.name].scored]
        lacking = [part.name for part in self.parts if part.required and part.name in missing]
        if lacking or len(missing) == len(self.parts):
            reasons = {
                name: scores[name].reason or "the score is not a number" for name in lacking or missing
            }
            return Score.cannot("; ".join(f"{name}: {reason}" for name, reason in reasons.items()))
        total = 0.0
        segments: list[SegmentScore] = []
        for part in self.parts:
            score = scores[part.name]
            if score.scored:
                total += part.weight * _shaped(part, score.value, self._values[part.name])
                segments += [
                    SegmentScore(
                        segment.end, part.weight * _shaped(part, segment.value, self._segments[part.name])
                    )
                    for segment in score.segments
                ]
        segments.sort(key=lambda segment: segment.end)
        return Score(_clipped(total, self._clip), tuple(segments))

    def state_dict(self) -> dict[str, PartState]:
        """Running statistics by part."""
        return {
            name: {"values": self._values[name].state_dict(), "segments": self._segments[name].state_dict()}
            for name in self._values
        }

    def load_state_dict(self, state: dict[str, PartState]) -> None:
        """Go on where `state_dict` was taken. Raises `ValueError` for other parts than these."""
        if set(state) != set(self._values):
            raise ValueError(f"the state is of the parts {sorted(state)}, not of {sorted(self._values)}")
        for name, part in state.items():
            self._values[name].load_state_dict(part["values"])
            self._segments[name].load_state_dict(part["segments"])


def _shaped(part: Part, value: float, statistics: RunningStatistics) -> float:
    return _clipped(statistics.standardised(value) if part.normalise else value, part.clip)


def _clipped(value: float, most: float | None) -> float:
    return value if most is None else min(max(value, -most), most)
