"""A linear head on frozen features of the base: place and ridge by cross-validation grouped by prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from training.rlhf.measures.calibration import Floats
from training.rlhf.measures.frozen_features import Values, preferred_place
from training.rlhf.measures.linear_choice import Choices, LinearScore, choices_of, fit_at, fit_cross_validated
from training.rlhf.methods.resampling import resample
from training.rlhf.model.backbone import OFFSET, SCORE, Backbone
from training.rlhf.model.places import Place
from training.rlhf.tokens.example import Example

_CLEARLY = 2.0
"""Standard errors by which another place's cost has to be lower."""


@dataclass(frozen=True, slots=True)
class FrozenHead:
    """A linear score of the features at one place."""

    place: Place
    score: LinearScore
    column: int
    """The place's column in a table of features."""

    def scores(self, features: Values) -> Floats:
        """Return the scores of completions: (rows, places, hidden) to (rows,)."""
        return self.score(features[:, self.column].astype(np.float64))


def fit_frozen_head(features: Values, choices: Choices, places: Sequence[Place]) -> FrozenHead:
    """Return the head at the preferred place, or where the cross-validated cost is clearly lower.

    features: (rows, places, hidden). Of the places whose cost is lower than that of `preferred_place` by more
    than two standard errors of the difference over prompts, the best is taken: with few judgments the lowest
    of many costs is lowest by chance.
    """
    heads = [
        FrozenHead(place, fit_cross_validated(features[:, column].astype(np.float64), choices), column)
        for column, place in enumerate(places)
    ]
    preferred = heads[list(places).index(preferred_place(places))]
    clearer = [head for head in heads if _is_clearly_better(head.score, preferred.score, choices)]
    return min(clearer, key=lambda head: head.score.log_loss, default=preferred)


def _is_clearly_better(score: LinearScore, other: LinearScore, choices: Choices) -> bool:
    if not np.isfinite(other.log_loss):
        return False
    saved = other.costs - score.costs
    return choices.mean(saved) > _CLEARLY * choices.standard_error(saved)


def fit_members(
    head: FrozenHead, features: Values, examples: Sequence[Example], *, whole: bool, count: int, seed: int
) -> list[LinearScore]:
    """Return the members of an ensemble: each fitted at the head's place and ridge to its own resample."""
    table = features[:, head.column].astype(np.float64)
    drawn = resample([example.judgment for example in examples], heads=count, seed=seed).tolist()
    members = []
    for times in drawn:
        weighed = [
            replace(example, weight=example.weight * often)
            for example, often in zip(examples, times, strict=True)
        ]
        choices = choices_of(weighed, whole=whole)
        # A resample of next to nothing may hold no judgment at all.
        drew_any = bool(choices.weight.any())
        members.append(fit_at(table, choices, head.score.strength) if drew_any else head.score)
    return members


def install_head(backbone: Backbone, adapter: str, head: FrozenHead, members: Sequence[LinearScore]) -> None:
    """Let the score of an adapter be the head: its outputs are the members, read where the head reads.

    An output's constant is the same for all: the mean over the members.
    """
    weights = torch.tensor(np.stack([member.weight for member in members]), dtype=torch.float32)
    offset = torch.tensor([float(np.mean([member.offset for member in members]))])
    backbone.set_head(adapter, SCORE, weights)
    backbone.set_reads(adapter, head.place)
    backbone.add_extra(adapter, OFFSET, offset)
