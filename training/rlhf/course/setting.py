"""What a lesson's training is called with, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

Figures = dict[str, float]
"""A run's figures at its end, by the names that `training.contract.course` declares."""
Report = Callable[[float, Mapping[str, float]], None]
"""Takes a point of the curve: the step, and the value of each line there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LessonSetting:
    """One run of a lesson."""

    seed: int
    broken: bool
    """With the one setting changed that the lesson names."""
    short: bool
    """In its smallest form, which shows that it runs and nothing else."""
    report: Report
    own: Path | None = None
    """Annotations of the person who runs it, as `training.services.course` writes them."""

    def steps(self, count: int, *, short: int) -> int:
        """Return the steps of this run."""
        return short if self.short else count
