"""Reward models: an adapter with one head for each thing that people were asked (Bradley & Terry 1952)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.contract import (
    BASELINES_KEY,
    CheckpointKind,
    ContractError,
    LoraSettings,
    RewardSettings,
    RunSpec,
)
from training.contract.methods.reward import STEPS
from training.rlhf.data import Wanted
from training.rlhf.loop.method import Outcome, Trained, TrainingMethod, start_adapter
from training.rlhf.measures.calibration import Floats
from training.rlhf.measures.frozen_features import FeatureCache, pooled
from training.rlhf.measures.linear_choice import choices_of
from training.rlhf.measures.validation import log_validation
from training.rlhf.methods.baselines import (
    MOST_TRAINED_ON_FEATURES,
    comparable,
    compare_with_baselines,
    figures_of_baselines,
    report_to_json,
)
from training.rlhf.methods.frozen_head import FrozenHead, fit_frozen_head, fit_members, install_head
from training.rlhf.methods.objectives import Objective
from training.rlhf.methods.objectives.completeness import CompletenessObjective
from training.rlhf.methods.objectives.preference import PreferenceObjective
from training.rlhf.methods.objectives.ratings import RatingObjective
from training.rlhf.methods.objectives.segments import SegmentObjective
from training.rlhf.methods.objectives.steps import StepObjective
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.places import Place
from training.rlhf.runtime.run_folder import log
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import Batch, pack, passes


class RewardModelling(TrainingMethod):
    """The sum of what its objectives cost, all read from one pass of the transformer."""

    kind: CheckpointKind = "reward"
    adapter = "reward"

    def __init__(
        self, backbone: Backbone, spec: RunSpec, settings: RewardSettings, *, cache: Path | None = None
    ) -> None:
        self._backbone = backbone
        self._settings = settings
        self._seed = spec.seed
        self._cache = cache
        self._continues = spec.parent is not None
        start_adapter(backbone, self.adapter, spec, _lora(settings))
        self._objectives = _objectives(backbone, self.adapter, spec, settings)
        self.wanted = _wanted(settings)

    def begin(self, train: Sequence[Example]) -> None:
        """Let every objective see what it will learn from; fit the head that begins on frozen features."""
        if self._settings.head_from == "frozen" and not self._continues:
            self.fit_to_frozen_features(comparable(train, MOST_TRAINED_ON_FEATURES))
        for objective in self._objectives:
            objective.begin(train)

    def fit_to_frozen_features(
        self, train: Sequence[Example], *, check: Callable[[], None] = lambda: None, writes: bool = True
    ) -> FrozenHead:
        """Make the score a linear head on frozen features, fitted to judgments; return it."""
        features = self._features(writes=writes)
        try:
            table = features.features(train, check)
        finally:
            features.save()
        whole = self._settings.loss == "plackett_luce"
        head = fit_frozen_head(table, choices_of(train, whole=whole), features.places)
        members = [head.score]
        if (count := self._settings.ensemble) > 1:
            members = fit_members(head, table, train, whole=whole, count=count, seed=self._seed)
        install_head(self._backbone, self.adapter, head, members)
        log.info(
            "The score reads the %s; ridge strength %g, cross-validated log-loss %.4f; features of %d "
            "judgments computed, of %d kept",
            head.place,
            head.score.strength,
            head.score.log_loss,
            features.computed,
            len(train) - features.computed,
        )
        return head

    def compare(self, trained: Trained) -> tuple[dict[str, float], dict[str, Any]]:
        """Compare the score with its baselines on the same held-out judgments."""
        if self._settings.loss == "none" or not any(example.pairs for example in trained.examples.held_out):
            return {}, {}
        trained.tell("comparing with baselines")
        on_features = self._settings.features == "adapted" and self._cache is not None
        report = compare_with_baselines(
            train=trained.examples.train,
            held_out=trained.examples.held_out,
            rows=trained.rows,
            scores=lambda examples: self._scores(examples, trained.check),
            features=self._features(writes=trained.writes) if on_features else None,
            whole=self._settings.loss == "plackett_luce",
            check=trained.check,
        )
        if report is None:
            return {}, {}
        return figures_of_baselines(report), {BASELINES_KEY: report_to_json(report)}

    def _features(self, *, writes: bool) -> FeatureCache:
        if self._cache is None:
            raise ContractError("head_from: frozen features need a folder for their cache")
        return FeatureCache(self._cache, self._backbone, writes=writes)

    @torch.no_grad()
    def _scores(self, examples: Sequence[Example], check: Callable[[], None]) -> Floats:
        """Return the scores of all completions of judgments, in order."""
        scores: list[float] = []
        for group in passes(examples, tokens=self._settings.optimiser.micro_batch_tokens):
            check()
            batch = pack(group, device=self._backbone.device)
            scores += read_rewards(self._backbone, self.adapter, batch).tolist()
        return np.array(scores)

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
    for head in settings.segments:
        objective = StepObjective if head.granularity == STEPS else SegmentObjective
        objectives.append(objective(backbone, adapter, spec, head))
    if whole := settings.completeness:
        objectives.append(CompletenessObjective(backbone, adapter, spec, whole, centring=settings.centring))
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
        categories=None if any(head.granularity != STEPS for head in settings.segments) else frozenset(),
        steps=any(head.granularity == STEPS for head in settings.segments),
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
    """Return the states of a packed row under an adapter: (T, hidden).

    Where the score reads elsewhere than at the last token of the last block, what it reads stands at the last
    token of each completion. Such an adapter has no other head.
    """
    place = backbone.reads(adapter)
    row = (batch.input_ids, batch.position_ids, batch.layout)
    with backbone.using(adapter, dropout=dropout):
        if place == Place(backbone.blocks, mean=False):
            return backbone.packed_states(*row)
        states = backbone.packed_layers(*row, layers={place.layer})
    read = pooled(states[place.layer], batch, mean=place.mean)
    return states[backbone.blocks].float().index_copy(0, batch.last, read)


def _lora(settings: RewardSettings) -> LoraSettings | None:
    """Return the shape of the adapter that carries the heads; None where all weights are trained. With frozen
    features it is the least, which stays 0: so a checkpoint is served and exported like any other."""
    if settings.features == "adapted":
        return settings.trained
    return LoraSettings(rank=1, targets=settings.lora.targets[:1], layers=1)


def read_rewards(backbone: Backbone, adapter: str, batch: Batch, *, dropout: bool = False) -> Tensor:
    """Return the score of every answer at its last token: (R,) float32."""
    return backbone.score(adapter, encode(backbone, adapter, batch, dropout=dropout)[batch.last])
