"""The head `score`, fitted to rankings."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from training.contract import RewardSettings, RunSpec
from training.rlhf.backbone import SCORE, Backbone
from training.rlhf.data import Example
from training.rlhf.losses import bradley_terry
from training.rlhf.methods import Outcome, Part
from training.rlhf.packing import Batch
from training.rlhf.pair_figures import pair_figures, pair_observations


class PreferenceObjective:
    """Every pair of a ranking costs −log σ(r⁺ − r⁻ − m); a ranking costs the mean of its pairs.

    Figures: `accuracy` (share of pairs ordered right), `margin` (r⁺ − r⁻), `log_loss`
    (−log σ(r⁺ − r⁻), without margin, smoothing and centring), `reward_mean`.
    """

    name = "preference"

    def __init__(self, backbone: Backbone, adapter: str, spec: RunSpec, settings: RewardSettings) -> None:
        self._backbone = backbone
        self._adapter = adapter
        self._settings = settings
        if SCORE not in backbone.heads(adapter):
            backbone.add_head(adapter, SCORE, seed=spec.seed)

    def weight(self, example: Example) -> float:
        """The judgment's weight where it decides a pair."""
        return example.weight if example.pairs else 0.0

    def outcome(self, states: Tensor, batch: Batch, examples: list[Example]) -> Outcome:
        """Bradley-Terry over the pairs of each ranking, plus centring."""
        rewards = self._backbone.score(self._adapter, states[batch.last])
        chosen, rejected = rewards[batch.winners], rewards[batch.losers]
        pair_loss = bradley_terry(
            chosen,
            rejected,
            margin=self._settings.margin_per_strength * batch.strength[batch.pair_example],
            label_smoothing=self._settings.label_smoothing,
            reduction="none",
        )
        # Only differences of rewards are observed; this keeps their sum near 0 (Eisenstein et al. 2023).
        pair_loss = pair_loss + self._settings.centring * (chosen + rejected) ** 2
        return Outcome(
            {self.name: Part(1.0, batch.mean_over_pairs(pair_loss))},
            pair_observations(batch, examples, rewards),
        )

    def figures(self, observed: Mapping[str, Tensor], *, held_out: bool) -> dict[str, float]:
        """Figures on the pairs of rewards."""
        return pair_figures(observed, held_out=held_out)
