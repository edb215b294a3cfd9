"""One module per training method. A method says what a batch costs; the loop does the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from training.contract import CheckpointKind, ContractError, LoraSettings, RunSpec
from training.rlhf.backbone import Backbone
from training.rlhf.data import Example, Wanted
from training.rlhf.packing import Batch
from training.rlhf.processes import Processes


class Part(NamedTuple):
    """One thing that a method learns. The loop minimises, over a step,

        Σ_parts coefficient · Σ_examples weight · loss / Σ_examples weight

    so that a part counts the same however many of a step's judgments speak of it.
    """

    coefficient: float
    loss: Tensor
    """(E,) what each example costs; carries the gradient. 0 where the part's weight is."""


class Outcome(NamedTuple):
    """What a batch comes to."""

    parts: Mapping[str, Part]
    """By name; the same names from every batch."""
    observed: Mapping[str, Tensor]
    """What the figures are made of, without gradient: tensors of one dimension, any length. Those of all
    passes of a step, or of an evaluation, are put together end to end."""


class TrainingMethod(Protocol):
    """What the loop asks of a method."""

    kind: CheckpointKind
    """What the run's checkpoint is."""
    adapter: str
    """Name of the adapter that is trained."""
    wanted: Wanted
    """What of a snapshot it learns from."""

    def begin(self, train: Sequence[Example]) -> None:
        """Called once, with all training examples, before the optimiser is made. For what must be known of
        all of them: how many are good and how many bad, who annotated."""
        del train  # most methods need nothing of them

    def prepare(self, examples: list[Example], processes: Processes) -> None:
        """Called with all examples of a step, over all processes, before its first pass; and with all of an
        evaluation. For what must not depend on how they are cut into passes and spread over processes."""
        del examples, processes  # most methods need nothing of them

    def weights(self, example: Example) -> Mapping[str, float]:
        """How much an example counts in each part; a part that it says nothing of has 0."""
        ...

    def outcome(self, batch: Batch, examples: list[Example], *, dropout: bool) -> Outcome:
        """What a batch costs; `examples` are those that it was made of."""
        ...

    def figures(self, observed: Mapping[str, Tensor], *, held_out: bool) -> dict[str, float]:
        """What is worth a curve, from the observations of a step or of an evaluation. With `held_out`
        also what takes many judgments to say: intervals, calibration."""
        ...

    def details(self, observed: Mapping[str, Tensor]) -> dict[str, Any]:
        """What an evaluation has to show that is no single figure, such as diagrams: plain JSON values."""
        del observed
        return {}


def start_adapter(
    backbone: Backbone, name: str, spec: RunSpec, lora: LoraSettings | None, *, trainable: bool = True
) -> None:
    """Add the adapter that a run trains, or with None all of the base's weights: new, or the parent
    checkpoint's.

    Raises `ContractError` where the parent's adapter is not shaped as the settings say.
    """
    if spec.parent is None:
        backbone.add_adapter(name, lora, seed=spec.seed, trainable=trainable)
        return
    backbone.load_adapter(name, Path(spec.parent), trainable=trainable)
    found = backbone.lora_settings(name)
    if found is None or lora is None:
        if found is not lora:
            kind, wanted = ("a whole model", "none") if found is None else ("a LoRA adapter", "lora")
            raise ContractError(
                f"settings, adapter: the parent is {kind}; set it to {wanted!r}, or export the parent with "
                "merged weights and make that the base"
            )
        return
    lora = backbone.fitted(lora)
    # A checkpoint's targets come back sorted.
    if replace(found, targets=lora.targets) != lora or set(found.targets) != set(lora.targets):
        raise ContractError(
            f"settings, lora: the parent's adapter is {found}, the settings ask for {lora}; "
            "continue with the parent's settings or start from the base"
        )
