"""Objectives of a reward model's heads: rankings, ratings, segments and steps.

An objective owns its heads, says what a batch costs given the transformer's states, and turns its
observations into figures. All objectives of a model share one forward and one backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from training.rlhf.loop.method import Outcome
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import Batch


class Objective(Protocol):
    """One thing that a reward model learns."""

    name: str
    """Name of its head, of its part in the loss, and of its details. The names of its observations begin
    with it and a dot, but for those of `score`."""

    def begin(self, train: Sequence[Example]) -> None:
        """Called once with all training examples: see `TrainingMethod.begin`."""
        ...

    def weight(self, example: Example) -> float:
        """Return an example's weight; 0 where it lacks this label."""
        ...

    def outcome(self, states: Tensor, batch: Batch, examples: list[Example]) -> Outcome:
        """Return the loss of a batch. states: (T, hidden), of the packed row."""
        ...

    def figures(self, observed: Mapping[str, Tensor], *, held_out: bool) -> dict[str, float]:
        """Return figures from its own observations among all that were made."""
        ...

    def details(self, observed: Mapping[str, Tensor]) -> dict[str, Any]:
        """Its part of an evaluation's details; empty where it has none."""
        ...
