"""Reward model: an adapter and a scalar head, fitted to rankings (Bradley & Terry 1952)."""

from __future__ import annotations

import torch
from torch import Tensor

from training.contract import CheckpointKind, RewardSettings, RunSpec
from training.rlhf.backbone import SCORE, Backbone
from training.rlhf.data import Batch, Example
from training.rlhf.losses import bradley_terry
from training.rlhf.methods import Losses, share_right, start_adapter


class RewardModelling:
    """Every pair of a ranking costs −log σ(r⁺ − r⁻ − m); a ranking costs the mean of its pairs.

    Reported: `accuracy` (share of pairs ordered right), `margin` (r⁺ − r⁻), `log_loss`
    (−log σ(r⁺ − r⁻), without margin, smoothing and centring), `reward_mean`.
    """

    kind: CheckpointKind = "reward"
    adapter = "reward"
    reported: tuple[str, ...] = ("accuracy", "margin", "log_loss", "reward_mean")

    def __init__(self, backbone: Backbone, spec: RunSpec, settings: RewardSettings) -> None:
        self._backbone = backbone
        self._settings = settings
        start_adapter(backbone, self.adapter, spec, settings.lora)
        if SCORE not in backbone.heads(self.adapter):
            backbone.add_head(self.adapter, SCORE, seed=spec.seed)

    def losses(self, batch: Batch, examples: list[Example], *, dropout: bool) -> Losses:
        """Bradley-Terry over the pairs of each ranking, plus centring."""
        rewards = read_rewards(self._backbone, self.adapter, batch, dropout=dropout)
        chosen, rejected = rewards[batch.winners], rewards[batch.losers]
        pair_loss = bradley_terry(
            chosen,
            rejected,
            margin=self._settings.margin_per_strength * batch.strength,
            label_smoothing=self._settings.label_smoothing,
            reduction="none",
        )
        # Only differences of rewards are observed; this keeps their sum near 0 (Eisenstein et al. 2023).
        pair_loss = pair_loss + self._settings.centring * (chosen + rejected) ** 2
        with torch.no_grad():
            margin = chosen - rejected
            statistics = {
                "accuracy": share_right(margin),
                "margin": margin,
                "log_loss": bradley_terry(chosen, rejected, reduction="none"),
                "reward_mean": (chosen + rejected) / 2,
            }
        return Losses(
            batch.mean_over_pairs(pair_loss),
            {name: batch.mean_over_pairs(values) for name, values in statistics.items()},
        )


def read_rewards(backbone: Backbone, adapter: str, batch: Batch, *, dropout: bool = False) -> Tensor:
    """The score of every row at its last real token: (R,) float32."""
    with backbone.using(adapter, dropout=dropout):
        states = backbone.hidden_states(batch.input_ids, batch.attention_mask).states
    rows = torch.arange(len(states), device=states.device)
    return backbone.score(adapter, states[rows, batch.last])
