"""The division of a step over several processes: each answers, scores and learns from every world-th prompt.

Answers and scores are exchanged as soon as they are there, so that advantages, whitening, running means and β
are computed from the whole step, by every process alike. Groups are never split. Gradients are summed; a loss
is divided by the tokens or answers of the whole minibatch, so that the sum is the gradient of one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from training.rlhf.policy_gradient.tally import Tally
from training.rlhf.runtime.processes import Processes

_Item = TypeVar("_Item")


class Share:
    """This process's part of a step's prompts; all of them where it is alone."""

    def __init__(self, processes: Processes | None = None) -> None:
        self._processes = processes or Processes()

    def rows(self, group: Sequence[int], rows: Sequence[int] | None = None) -> list[int]:
        """Return rows of answers to this process's prompts.

        group: (B) the number of each one's prompt; for the prompts themselves, their numbers. rows: among
        which; None is all.
        """
        among = range(len(group)) if rows is None else rows
        return [row for row in among if group[row] % self._processes.world == self._processes.rank]

    def merged(self, rows: Sequence[int], mine: Sequence[_Item]) -> list[_Item]:
        """Return one thing for every row of the step in order, from those for this process's rows."""
        every = dict[int, _Item]()
        for part in self._processes.gather_objects(dict(zip(rows, mine, strict=True))):
            every |= part
        return [every[row] for row in sorted(every)]

    def filled(self, values: Tensor) -> Tensor:
        """Return (B, T) of all answers, from values that are 0 for answers to other processes' prompts."""
        return self._processes.sum(values)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is up in any process."""
        return self._processes.any(flag, torch.device("cpu"))

    def joined(self, tally: Tally, sums: dict[str, float]) -> tuple[Tally, dict[str, float]]:
        """Return the figures of all processes together, and each sum over all of them."""
        if self._processes.world == 1:
            return tally, sums
        whole, totals = Tally(), dict[str, float]()
        for other, partial in self._processes.gather_objects((tally.plain(), sums)):
            whole.join(other)
            for name, value in partial.items():
                totals[name] = totals.get(name, 0.0) + value
        return whole, totals
