"""Interface of a reward: prompts, completions and references in, a score for each completion out.

On the standard library and the contract alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from training.contract.snapshot import Message

Chat = Sequence[Message]
"""A prompt: a conversation, whose next turn the completion is."""
Reference = Any
"""Right answer, or what is known of it, as decoded JSON: mostly a text; None where nothing is."""


@dataclass(frozen=True, slots=True)
class ScoredSegment:
    """Reward of one stretch of a completion."""

    end: int
    """End in the completion, in code points, exclusive; it begins where the one before ends."""
    value: float


@dataclass(frozen=True, slots=True)
class Score:
    """Score of one completion by one reward."""

    value: float
    """Higher is better. NaN: it cannot be scored, which is not the same as 0."""
    segments: tuple[ScoredSegment, ...] = ()
    """Dense rewards, in the order of the text, on top of `value`; see `training.rlhf.spans`."""
    reason: str = ""
    """Why it cannot be scored; empty where it was."""
    members: tuple[float, ...] = ()
    """What each head of an ensemble says, whose mean is in `value`; empty without one."""

    def __post_init__(self) -> None:
        if math.isinf(self.value):
            raise ValueError(f"a score must be finite, or NaN where there is none; got {self.value}")
        ends = [segment.end for segment in self.segments]
        if ends != sorted(ends) or not all(math.isfinite(segment.value) for segment in self.segments):
            raise ValueError(f"segments must be in order and have finite values; got {self.segments}")

    @classmethod
    def cannot(cls, reason: str) -> Score:
        """Return a score without a value; such completions are counted by reason."""
        return cls(math.nan, reason=reason)

    @property
    def scored(self) -> bool:
        return not math.isnan(self.value)


class UnavailableRewardError(Exception):
    """No completion can be scored now, whichever it is: that ends the run, which can be started again."""


class Reward(Protocol):
    """Scores completions. `prompts`, `completions` and `references` have one length, and so has the result.

    A completion that it has no verdict on gets `Score.cannot`. What it raises for is a bug or a
    broken machine; `Guarded` turns that into "cannot score" so that a run survives it.
    """

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]: ...


class NoReferenceError(Exception):
    """A reward needs a reference and the prompt has none, or one that it cannot read."""


def score_each(
    score: Callable[[str, Reference], float], completions: Sequence[str], references: Sequence[Reference]
) -> list[Score]:
    """Apply a function of one completion and its reference; `NoReferenceError` is "cannot score"."""
    scores = []
    for completion, reference in zip(completions, references, strict=True):
        try:
            scores.append(Score(score(completion, reference)))
        except NoReferenceError as error:
            scores.append(Score.cannot(str(error)))
    return scores


def text_reference(reference: Reference) -> str:
    """Return the reference as a text that is not empty. Raises `NoReferenceError`."""
    if not isinstance(reference, str) or not reference.strip():
        raise NoReferenceError("the prompt has no reference text")
    return reference


def text_references(reference: Reference) -> list[str]:
    """Return one reference text, or a list of several that are all right. Raises `NoReferenceError`."""
    return [text_reference(text) for text in (reference if isinstance(reference, list) else [reference])] or [
        text_reference(None)
    ]


class Guarded:
    """A reward whose exceptions cost only the samples that raise; `UnavailableRewardError` passes.

    A batch that raises is asked again sample by sample; what raises then "cannot be scored". So
    one odd completion does not stop a run, and `failures` says what went wrong how often.
    """

    def __init__(self, reward: Reward) -> None:
        self._reward = reward
        self.failures: Counter[str] = Counter()
        """Samples by what was raised for them, since the start."""

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        try:
            return self._ask(prompts, completions, references)
        except UnavailableRewardError:
            raise
        except Exception as error:  # a user's reward may raise anything
            if len(completions) > 1:
                return [
                    self([prompt], [completion], [reference])[0]
                    for prompt, completion, reference in zip(prompts, completions, references, strict=True)
                ]
            reason = f"{type(error).__name__}: {error}"
            self.failures[reason] += 1
            return [Score.cannot(reason)]

    def _ask(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        scores = self._reward(prompts, completions, references)
        if len(scores) != len(completions):
            raise ValueError(f"the reward gave {len(scores)} scores for {len(completions)} completions")
        return scores
