"""The interface of a training method: a method computes the loss of a batch; the loop does the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from training.contract import ContractError
from training.contract.checkpoint import CheckpointKind
from training.contract.methods.common import LoraSettings
from training.contract.run import RunSpec
from training.contract.snapshot import SnapshotRow
from training.rlhf.data import Examples
from training.rlhf.model.backbone import Backbone
from training.rlhf.runtime.processes import Processes
from training.rlhf.tokens.example import Example, UsedLabels
from training.rlhf.tokens.packing import Batch


class Part(NamedTuple):
    """One thing that a method learns. The loop minimises, over a step,

        Σ_parts coefficient · Σ_examples weight · loss / Σ_examples weight

    so that a part counts the same however many of a step's judgments have a weight in it.
    """

    coefficient: float
    loss: Tensor
    """(E,) loss of each example; carries the gradient. 0 where the part's weight is."""


class Outcome(NamedTuple):
    """Loss and observations of a batch."""

    parts: Mapping[str, Part]
    """By name; the same names from every batch."""
    observed: Mapping[str, Tensor]
    """Observations for the figures, without gradient: tensors of one dimension, any length. Those of all
    passes of a step, or of an evaluation, are put together end to end."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The data of a run whose last step is taken."""

    examples: Examples
    rows: Callable[[], Iterable[SnapshotRow]]
    """Reads the snapshot's rows again."""
    check: Callable[[], None]
    """Raises where the run is asked to stop; to be called before every forward pass."""
    tell: Callable[[str], None]
    """Shows a status message."""
    writes: bool
    """True if this process writes files."""
    steps: int = 0
    """Steps that the state had taken which becomes the checkpoint."""


class TrainingMethod(Protocol):
    """Interface between the loop and a method."""

    kind: CheckpointKind
    """Kind of the run's checkpoint."""
    adapter: str
    """Name of the adapter that is trained."""
    wanted: UsedLabels
    """Labels of a snapshot that it learns from."""
    start_is_candidate: bool = False
    """True if the state before the first step is evaluated and may be the best."""

    def begin(self, train: Sequence[Example]) -> None:
        """Called once, with all training examples, before the optimiser is made. For what must be known of
        all of them: how many are good and how many bad, who annotated."""
        del train  # most methods need nothing of them

    def prepare(self, examples: list[Example], processes: Processes) -> None:
        """Called with all examples of a step, over all processes, before its first pass; and with all of an
        evaluation. For what must not depend on how they are cut into passes and spread over processes."""
        del examples, processes  # most methods need nothing of them

    def weights(self, example: Example) -> Mapping[str, float]:
        """Return an example's weight in each part; 0 for a part it does not label."""
        ...

    def outcome(self, batch: Batch, examples: list[Example], *, dropout: bool) -> Outcome:
        """Return the loss of a batch made of `examples`."""
        ...

    def figures(self, observed: Mapping[str, Tensor], *, held_out: bool) -> dict[str, float]:
        """Return the metrics of the observations of a step or an evaluation. With `held_out`
        also those that need many judgments: intervals, calibration."""
        ...

    def details(self, observed: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return an evaluation's results that are no single figure, such as diagrams, as JSON values."""
        del observed
        return {}

    def compare(self, trained: Trained) -> tuple[dict[str, float], dict[str, Any]]:
        """Compare what was trained with simpler predictors, after the last step: further held-out figures,
        and details as JSON values by name."""
        del trained  # most methods have nothing to be compared with
        return {}, {}

    def held_out_warnings(self, figures: Mapping[str, float]) -> list[str]:
        """Log conclusions from the held-out figures at the end; return the warnings among them."""
        del figures  # most methods have nothing to compare them with
        return []


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
    shape = backbone.lora_settings(name)
    if shape is None or lora is None:
        if shape is not lora:
            kind, adapter = ("a whole model", "none") if shape is None else ("a LoRA adapter", "lora")
            raise ContractError(
                f"settings, adapter: the parent is {kind}; set it to {adapter!r}, or export the parent with "
                "merged weights and make that the base"
            )
        return
    lora = backbone.fitted(lora)
    # A checkpoint's targets come back sorted.
    if replace(shape, targets=lora.targets) != lora or set(shape.targets) != set(lora.targets):
        raise ContractError(
            f"settings, lora: the parent's adapter is {shape}, the settings ask for {lora}; "
            "continue with the parent's settings or start from the base"
        )
