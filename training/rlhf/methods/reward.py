"""Reward models: an adapter with one head for each thing that people were asked (Bradley & Terry 1952)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from training.contract import CheckpointKind, RewardSettings, RunSpec
from training.rlhf.data import Wanted
from training.rlhf.loop.method import Outcome, TrainingMethod, start_adapter
from training.rlhf.measures.validation import log_validation
from training.rlhf.methods.objectives import Objective
from training.rlhf.methods.objectives.completeness import CompletenessObjective
from training.rlhf.methods.objectives.preference import PreferenceObjective
from training.rlhf.methods.objectives.ratings import RatingObjective
from training.rlhf.methods.objectives.segments import SegmentObjective
from training.rlhf.model.backbone import Backbone
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import Batch


class RewardModelling(TrainingMethod):
    """The sum of what its objectives cost, all read from one pass of the transformer."""

    kind: CheckpointKind = "reward"
    adapter = "reward"

    def __init__(
        self, backbone: Backbone, spec: RunSpec, settings: RewardSettings, *, cache: Path | None = None
    ) -> None:
        del cache  # a reward model has no reference whose log-probabilities could be kept
        self._backbone = backbone
        start_adapter(backbone, self.adapter, spec, settings.lora)
        self._objectives = _objectives(backbone, self.adapter, spec, settings)
        self.wanted = _wanted(settings)

    def begin(self, train: Sequence[Example]) -> None:
        """Let every objective see what it will learn from."""
        for objective in self._objectives:
            objective.begin(train)

    def held_out_warnings(self, figures: Mapping[str, float]) -> list[str]:
        """Log the validation; warn where a constant or length alone does better."""
        return log_validation(figures)

    def weights(self, example: Example) -> Mapping[str, float]:
        """By objective: the example's weight where it says something of it, else 0."""
        return {objective.name: objective.weight(example) for objective in self._objectives}

    def outcome(self, batch: Batch, examples: list[Example], *, dropout: bool) -> Outcome:
        """Return all objectives on the states of one forward pass."""
        states = encode(self._backbone, self.adapter, batch, dropout=dropout)
        outcomes = [objective.outcome(states, batch, examples) for objective in self._objectives]
        return Outcome(
            {name: part for outcome in outcomes for name, part in outcome.parts.items()},
            {name: value for outcome in outcomes for name, value in outcome.observed.items()},
        )

    def figures(self, observed: Mapping[str, Tensor], *, held_out: bool) -> dict[str, float]:
        """Return the figures of all objectives."""
        figures: dict[str, float] = {}
        for objective in self._objectives:
            figures |= objective.figures(observed, held_out=held_out)
        return figures

    def details(self, observed: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the details of all objectives that have some, by name."""
        details = {objective.name: objective.details(observed) for objective in self._objectives}
        return {name: values for name, values in details.items() if values}


def _objectives(backbone: Backbone, adapter: str, spec: RunSpec, settings: RewardSettings) -> list[Objective]:
    """Return the objectives of the settings; each adds its heads to the adapter."""
    objectives: list[Objective] = []
    if settings.loss != "none":
        objectives.append(PreferenceObjective(backbone, adapter, spec, settings))
    objectives += [RatingObjective(backbone, adapter, spec, head) for head in settings.ratings]
    objectives += [SegmentObjective(backbone, adapter, spec, head) for head in settings.segments]
    if head := settings.completeness:
        objectives.append(CompletenessObjective(backbone, adapter, spec, head, centring=settings.centring))
    return objectives


def _wanted(settings: RewardSettings) -> Wanted:
    """Return the labels that the objectives use."""
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
    """Return the states of a packed row under an adapter: (T, hidden)."""
    with backbone.using(adapter, dropout=dropout):
        return backbone.packed_states(batch.input_ids, batch.position_ids, batch.layout)


def read_rewards(backbone: Backbone, adapter: str, batch: Batch, *, dropout: bool = False) -> Tensor:
    """Return the score of every answer at its last token: (R,) float32."""
    return backbone.score(adapter, encode(backbone, adapter, batch, dropout=dropout)[batch.last])
