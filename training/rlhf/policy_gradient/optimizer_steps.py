"""The optimiser steps of a policy's update, and the time that each part of a step takes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from torch import nn

from training.rlhf.model.sharding import clip_gradients
from training.rlhf.policy_gradient.update import OptimizerStep


class OptimizerSteps:
    """Optimiser steps of one update."""

    def __init__(
        self,
        groups: Sequence[Sequence[nn.Parameter]],
        most: float,
        apply: Callable[[], None],
        sum_gradients: Callable[[list[nn.Parameter]], None],
    ) -> None:
        """sum_gradients: over the processes of the run."""
        self._groups = groups
        self._most = most
        self._apply = apply
        self._sum_gradients = sum_gradients
        self.taken = 0

    def __call__(self, finite: bool) -> OptimizerStep:
        """Clip, step where all is finite, and empty the gradient. The norm returned is the policy's."""
        self._sum_gradients([parameter for group in self._groups for parameter in group])
        norms = [float(clip_gradients(group, self._most)) for group in self._groups]
        finite = finite and all(map(math.isfinite, norms))
        if finite:
            self._apply()
            self.taken += 1
        for group in self._groups:
            for parameter in group:
                parameter.grad = None
        return OptimizerStep(norms[0], finite)


class Clock:
    """Duration of each part of a step, in seconds."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """The time since the last lap."""
        now = time.monotonic()
        self.laps[name] = round(now - self._last, 3)
        self._last = now
