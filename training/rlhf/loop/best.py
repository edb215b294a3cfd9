"""The best state that a run has been in, as its evaluations saw it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from training.rlhf.model.backbone import Backbone


class BestState:
    """The adapter and heads with the lowest held-out loss so far, and when that was."""

    def __init__(self) -> None:
        self.step = 0
        """Optimiser steps taken then."""
        self.figures: dict[str, float] = {}
        """Held-out figures of that state; empty before the first evaluation."""
        self.stale = 0
        """Evaluations in a row since."""
        self.adapter: dict[str, Tensor] = {}
        self.heads: dict[str, Tensor] = {}

    def offer(self, backbone: Backbone, adapter: str, *, step: int, figures: Mapping[str, float]) -> bool:
        """Take the present state where it is better; whether it was. Without held-out figures none is."""
        loss = figures.get("held_out_loss")
        if loss is None:
            return False
        # Not (loss < best) would let NaN in: what is not a number is not better.
        if self.figures and not loss < self.figures["held_out_loss"]:
            self.stale += 1
            return False
        self.step, self.figures, self.stale = step, dict(figures), 0
        self.adapter = {
            name: value.detach().clone() for name, value in backbone.adapter_state(adapter).items()
        }
        self.heads = {name: value.detach().clone() for name, value in backbone.head_state(adapter).items()}
        return True

    def put_back(self, backbone: Backbone, adapter: str) -> None:
        """Make it the adapter's state again."""
        backbone.overwrite(adapter, self.adapter, self.heads)

    def to_json(self) -> dict[str, Any]:
        """Return all but the tensors."""
        return {"step": self.step, "figures": self.figures, "stale": self.stale}

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors, under names of their own."""
        return {f"best.adapter.{name}": value for name, value in self.adapter.items()} | {
            f"best.head.{name}": value for name, value in self.heads.items()
        }

    def load(self, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Come back as `to_json` and `tensors` gave it."""
        self.step, self.figures, self.stale = values["step"], dict(values["figures"]), values["stale"]
        for name, into in (("best.adapter.", self.adapter), ("best.head.", self.heads)):
            into.clear()
            into.update({key.removeprefix(name): v for key, v in tensors.items() if key.startswith(name)})
