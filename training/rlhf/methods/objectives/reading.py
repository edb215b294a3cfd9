"""Outputs of a trained reward model's heads on whole completions."""

from __future__ import annotations

from torch import Tensor

from training.contract import RewardSettings
from training.rlhf.methods.objectives.ratings import predicted_ratings
from training.rlhf.model.backbone import SCORE, Backbone


def read_heads(
    backbone: Backbone, adapter: str, states: Tensor, settings: RewardSettings
) -> dict[str, Tensor]:
    """By head, (N, outputs): of `score` one output for each member of the ensemble, whose mean is the score;
    of a rating head the expected rating on 0..1 or the chance; of completeness its score.

    states: (N, hidden), at the answers' last tokens, computed with the adapter active. Heads on segments say
    nothing of whole answers and are left out.
    """
    result: dict[str, Tensor] = {}
    if settings.loss != "none":
        result[SCORE] = backbone.outputs(adapter, states)
    for head in settings.ratings:
        scores = backbone.score(adapter, states, head=head.name)
        result[head.name] = predicted_ratings(backbone, adapter, head, scores).unsqueeze(-1)
    if settings.completeness is not None:
        name = settings.completeness.name
        result[name] = backbone.outputs(adapter, states, head=name)
    return result
