"""Reward models: an adapter with one head for each thing that people were asked (Bradley & Terry 1952)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from training.contract import CheckpointKind, RewardSettings, RunSpec
from training.rlhf.backbone import Backbone
from training.rlhf.data import Example, Wanted
from training.rlhf.methods import Outcome, TrainingMethod, start_adapter
from training.rlhf.objectives import Objective
from training.rlhf.objectives.preference import PreferenceObjective
from training.rlhf.packing import Batch


class RewardModelling(TrainingMethod):
    """The sum of what its objectives cost, all read from one pass of the transformer."""

    kind: CheckpointKind = "reward"
    adapter = "reward"

    def __init__(self, backbone: Backbone, spec: RunSpec, settings: RewardSettings) -> None:
        self._backbone = backbone
        start_adapter(backbone, self.adapter, spec, settings.lora)
        self._objectives: list[Objective] = []
        if settings.loss != "none":
            self._objectives.append(PreferenceObjective(backbone, self.adapter, spec, settings))
        self.wanted = Wanted(
            ranks="none" if settings.loss == "none" else "decided", corrections=settings.use_corrections
        )

    def weights(self, example: Example) -> Mapping[str, float]:
        """By objective: the example's weight where it says something of it, else 0."""
        return {objective.name: objective.weight(example) for objective in self._objectives}

    def outcome(self, batch: Batch, examples: list[Example], *, dropout: bool) -> Outcome:
        """All objectives on the states of one forward pass."""
        states = encode(self._backbone, self.adapter, batch, dropout=dropout)
        outcomes = [objective.outcome(states, batch, examples) for objective in self._objectives]
        return Outcome(
            {name: part for outcome in outcomes for name, part in outcome.parts.items()},
            {name: value for outcome in outcomes for name, value in outcome.observed.items()},
        )

    def figures(self, observed: Mapping[str, Tensor], *, held_out: bool) -> dict[str, float]:
        """The figures of all objectives."""
        figures: dict[str, float] = {}
        for objective in self._objectives:
            figures |= objective.figures(observed, held_out=held_out)
        return figures


def encode(backbone: Backbone, adapter: str, batch: Batch, *, dropout: bool = False) -> Tensor:
    """The states of a packed row under an adapter: (T, hidden)."""
    with backbone.using(adapter, dropout=dropout):
        return backbone.packed_states(batch.input_ids, batch.position_ids, batch.layout)


def read_rewards(backbone: Backbone, adapter: str, batch: Batch, *, dropout: bool = False) -> Tensor:
    """The score of every answer at its last token: (R,) float32."""
    return backbone.score(adapter, encode(backbone, adapter, batch, dropout=dropout)[batch.last])
