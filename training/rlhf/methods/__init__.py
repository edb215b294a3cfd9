"""One module per training method. A method says what a batch costs; the loop does the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

from torch import Tensor

from training.contract import CheckpointKind, ContractError, LoraSettings, RunSpec
from training.rlhf.backbone import Backbone
from training.rlhf.data import Batch, Example


class Losses(NamedTuple):
    """What a batch costs, one value per example (E,), and what else is worth a curve."""

    loss: Tensor
    """(E,) minimised as the weighted mean over all examples of a step. Carries the gradient."""
    statistics: Mapping[str, Tensor]
    """(E,) each, without gradient, under the names in `reported`; written down as their means."""


class TrainingMethod(Protocol):
    """What the loop asks of a method."""

    kind: CheckpointKind
    """What the run's checkpoint is."""
    adapter: str
    """Name of the adapter that is trained."""
    reported: tuple[str, ...]
    """Names of the statistics; `accuracy` is always among them."""

    def losses(self, batch: Batch, examples: list[Example], *, dropout: bool) -> Losses:
        """Losses and statistics of a batch; `examples` are those that the batch was made of."""
        ...


def start_adapter(
    backbone: Backbone, name: str, spec: RunSpec, lora: LoraSettings, *, trainable: bool = True
) -> None:
    """Add the adapter that a run trains: a new one, or the parent checkpoint's.

    Raises `ContractError` where the parent's adapter is not shaped as the settings say.
    """
    if spec.parent is None:
        backbone.add_adapter(name, lora, seed=spec.seed, trainable=trainable)
        return
    backbone.load_adapter(name, Path(spec.parent), trainable=trainable)
    found, lora = backbone.lora_settings(name), backbone.fitted(lora)
    # A checkpoint's targets come back sorted.
    if replace(found, targets=lora.targets) != lora or set(found.targets) != set(lora.targets):
        raise ContractError(
            f"settings, lora: the parent's adapter is {found}, the settings ask for {lora}; "
            "continue with the parent's settings or start from the base"
        )


def share_right(margin: Tensor) -> Tensor:
    """1 where the winner leads, 0 where it trails, ½ where both are equal: (P,) to (P,)."""
    return (margin.sign() + 1) / 2
