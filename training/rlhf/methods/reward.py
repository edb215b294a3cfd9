"""Reward models: an adapter with one head for each thing that people were asked (Bradley & Terry 1952)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from training.contract import CheckpointKind, RewardSettings, RunSpec
from training.rlhf.backbone import Backbone
from training.rlhf.data import Example, Wanted
from training.rlhf.methods import Outcome, TrainingMethod, start_adapter
from training.rlhf.objectives import Objective
from training.rlhf.objectives.completeness import CompletenessObjective
from training.rlhf.objectives.preference import PreferenceObjective
from training.rlhf.objectives.ratings import RatingObjective
from training.rlhf.objectives.segments import SegmentObjective
from training.rlhf.packing import Batch


class RewardModelling(TrainingMethod):
    """The sum of what its objectives cost, all read from one pass of the transformer."""

    kind: CheckpointKind = "reward"
    adapter = "reward"

    def __init__(self, backbone: Backbone, spec: RunSpec, settings: RewardSettings) -> None:
        self._backbone = backbone
        start_adapter(backbone, self.adapter, spec, settings.lora)
        self._objectives = _objectives(backbone, self.adapter, spec, settings)
        self.wanted = _wanted(settings)

    def begin(self, train: Sequence[Example]) -> None:
        """Let every objective see what it will learn from."""
        for objective in self._objectives:
            objective.begin(train)

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

    def details(self, observed: Mapping[str, Tensor]) -> dict[str, Any]:
        """The details of all objectives that have some, by name."""
        details = {objective.name: objective.details(observed) for objective in self._objectives}
        return {name: values for name, values in details.items() if values}


def _objectives(backbone: Backbone, adapter: str, spec: RunSpec, settings: RewardSettings) -> list[Objective]:
    """What the settings ask for; each adds its heads to the adapter."""
    found: list[Objective] = []
    if settings.loss != "none":
        found.append(PreferenceObjective(backbone, adapter, spec, settings))
    found += [RatingObjective(backbone, adapter, spec, head) for head in settings.ratings]
    found += [SegmentObjective(backbone, adapter, spec, head) for head in settings.segments]
    if head := settings.completeness:
        found.append(CompletenessObjective(backbone, adapter, spec, head, centring=settings.centring))
    return found


def _wanted(settings: RewardSettings) -> Wanted:
    """What of a snapshot the objectives use."""
    models_ties = settings.loss == "davidson" or settings.ties == "davidson"
    decided = settings.loss != "none" and not models_ties
    others = settings.ratings or settings.segments or settings.completeness
    only_pairs = settings.loss != "none" and not others
    lacks = settings.completeness.categories or None if settings.completeness else ()
    return Wanted(
        ranks="none" if settings.loss == "none" else "decided" if decided else "tied",
        criteria=frozenset(head.criterion for head in settings.ratings),
        # All of them, so that a head whose category nobody marked can tell which there are.
        categories=None if settings.segments else frozenset(),
        missing=None if lacks is None else frozenset(lacks),
        corrections=settings.use_corrections,
        nothing="has no training pair" if only_pairs else "has nothing that the heads could learn",
        remedy=(
            "Judge more comparisons in which one answer is better"
            if only_pairs
            else "Judge more comparisons, and say of them what the heads are to learn"
        ),
    )


def encode(backbone: Backbone, adapter: str, batch: Batch, *, dropout: bool = False) -> Tensor:
    """The states of a packed row under an adapter: (T, hidden)."""
    with backbone.using(adapter, dropout=dropout):
        return backbone.packed_states(batch.input_ids, batch.position_ids, batch.layout)


def read_rewards(backbone: Backbone, adapter: str, batch: Batch, *, dropout: bool = False) -> Tensor:
    """The score of every answer at its last token: (R,) float32."""
    return backbone.score(adapter, encode(backbone, adapter, batch, dropout=dropout)[batch.last])
