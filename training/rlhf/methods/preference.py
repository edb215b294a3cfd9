"""Direct preference optimisation of a policy on an adapter (Rafailov et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from training.contract import CheckpointKind, ContractError, PreferenceSettings, RunSpec
from training.rlhf.backbone import Backbone
from training.rlhf.data import Example, Wanted
from training.rlhf.log_probabilities import answer_log_probabilities
from training.rlhf.losses import dpo
from training.rlhf.methods import Outcome, Part, TrainingMethod, start_adapter
from training.rlhf.packing import Batch
from training.rlhf.pair_figures import pair_figures, pair_observations
from training.rlhf.reference import Reference


class DirectPreference(TrainingMethod):
    """Every pair of a ranking costs the DPO loss; a ranking costs the mean of its pairs.

    The reference is the base, adapters off, for a run that starts from the base, and a frozen
    copy of the parent's adapter for a run that continues one.

    Figures: `accuracy` (share of pairs whose winner has the higher implicit reward), `margin`
    (difference of implicit rewards), `reward_chosen`, `reward_rejected` (implicit rewards
    β·log π/π_ref), `log_loss` (−log σ(margin)).
    """

    kind: CheckpointKind = "policy"
    adapter = "policy"

    def __init__(self, backbone: Backbone, spec: RunSpec, settings: PreferenceSettings) -> None:
        self._backbone = backbone
        self._settings = settings
        start_adapter(backbone, self.adapter, spec, settings.lora)
        self._reference = Reference(backbone, spec, settings.lora)
        if settings.loss == "plackett_luce":
            raise ContractError("preference settings, loss: 'plackett_luce' is not there yet")
        self._pair_loss = settings.loss
        self.wanted = Wanted(corrections=settings.use_corrections)

    def weights(self, example: Example) -> Mapping[str, float]:
        """Every ranking counts by its weight."""
        return {"preference": example.weight}

    def outcome(self, batch: Batch, examples: list[Example], *, dropout: bool) -> Outcome:
        """DPO over the pairs of each ranking."""
        policy = answer_log_probabilities(self._backbone, self.adapter, batch, dropout=dropout)
        reference = self._reference.log_probabilities(batch, examples)
        beta = self._settings.beta
        winners, losers = batch.winners, batch.losers
        pair_loss = dpo(
            policy[winners],
            policy[losers],
            reference[winners],
            reference[losers],
            beta=beta,
            loss=self._pair_loss,
            label_smoothing=self._settings.label_smoothing,
            reduction="none",
        )
        with torch.no_grad():
            rewards = beta * (policy - reference)
            observed = pair_observations(batch, examples, rewards)
        return Outcome({"preference": Part(1.0, batch.mean_over_pairs(pair_loss))}, observed)

    def figures(self, observed: Mapping[str, Tensor], *, held_out: bool) -> dict[str, float]:
        """Figures on the pairs of implicit rewards."""
        return pair_figures(observed, held_out=held_out)
