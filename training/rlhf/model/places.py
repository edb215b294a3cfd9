"""Places in a transformer whose states a head on whole completions may read."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Place(NamedTuple):
    """The states after one block, taken over a completion's tokens or at its last one."""

    layer: int
    """Number of the block, from 1; of the last block the states after the final norm."""
    mean: bool
    """True: the mean over the completion's tokens; False: the state at its last token."""

    def __str__(self) -> str:
        return f"{'mean' if self.mean else 'last token'} of layer {self.layer}"

    def to_tensor(self) -> Tensor:
        """Return the place as a checkpoint stores it, (2,)."""
        return torch.tensor([float(self.layer), float(self.mean)])

    @classmethod
    def from_tensor(cls, values: Tensor) -> Place:
        """Return the place that `to_tensor` stored."""
        layer, mean = values.tolist()
        return cls(round(layer), bool(round(mean)))
