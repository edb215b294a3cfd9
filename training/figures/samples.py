"""Samples of a run's step for display: each token shaded by its measure.

Reads the trainer's output; uses no database and no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from training.contract import SampledAnswer, SampledToken

Measure = Literal["advantage", "reward", "kl"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
SHADES = 4
"""Steps of colour on either side of 0."""
_END = "∎"
"""Shown for a token without text: the end of the answer, or a part of a character."""


@dataclass(frozen=True, slots=True)
class ShadedToken:
    """A token with the class of its colour."""

    token: SampledToken
    shade: int
    """-SHADES to SHADES: its measure relative to the largest of the step; 0 also without one."""

    @property
    def text(self) -> str:
        """Return the displayed text."""
        return self.token.text or _END

    @property
    def css(self) -> str:
        """Return the class of its colour, `shade-n4` to `shade-p4`."""
        side = "n" if self.shade < 0 else "p"
        return f"shade-{side}{abs(self.shade)}" if self.shade else ""


@dataclass(frozen=True, slots=True)
class ShadedAnswer:
    """An answer with its tokens shaded."""

    sample: SampledAnswer
    tokens: tuple[ShadedToken, ...]

    @property
    def parts(self) -> list[tuple[str, float | None]]:
        """Return the parts of the reward with their scores, sorted by name."""
        return sorted(self.sample.parts.items())


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """One step's samples on the page."""

    step: int
    last_step: int
    measure: Measure
    answers: tuple[ShadedAnswer, ...]
    largest: float
    """Magnitude that has the deepest colour."""
    has_reference: bool
    """True if any token has a divergence."""

    @property
    def before(self) -> int | None:
        """Return the step before, if there is one."""
        return self.step - 1 if self.step > 1 else None

    @property
    def after(self) -> int | None:
        """Return the step after, if there is one."""
        return self.step + 1 if self.step < self.last_step else None


def shaded(answers: Sequence[SampledAnswer], *, step: int, last_step: int, measure: Measure) -> Samples:
    """Return the answers of a step, each token shaded by `measure` on a common scale."""
    values = [_value(token, measure) for answer in answers for token in answer.tokens]
    largest = max(map(abs, values), default=0.0)
    return Samples(
        step=step,
        last_step=last_step,
        measure=measure,
        answers=tuple(
            ShadedAnswer(
                answer,
                tuple(ShadedToken(token, _shade(_value(token, measure), largest)) for token in answer.tokens),
            )
            for answer in answers
        ),
        largest=largest,
        has_reference=any(token.kl is not None for answer in answers for token in answer.tokens),
    )


def _value(token: SampledToken, measure: Measure) -> float:
    value: float | None = getattr(token, measure)
    return value or 0.0


def _shade(value: float, largest: float) -> int:
    """Return the nearest shade; never 0 for a value that is not 0."""
    if not value:
        return 0
    nearest = max(round(abs(value) / largest * SHADES), 1)
    return nearest if value > 0 else -nearest
