"""Direct preference optimisation of a policy on an adapter (Rafailov et al. 2023)."""

from __future__ import annotations

import torch
from torch import Tensor

from training.contract import CheckpointKind, PreferenceSettings, RunSpec
from training.rlhf.backbone import Backbone
from training.rlhf.data import Batch, Example, collate
from training.rlhf.log_probabilities import answer_log_probabilities
from training.rlhf.losses import dpo
from training.rlhf.methods import Losses, share_right, start_adapter

_REFERENCE = "reference"


class DirectPreference:
    """Every pair of a ranking costs the DPO loss; a ranking costs the mean of its pairs.

    The reference is the base, adapters off, for a run that starts from the base, and a frozen
    copy of the parent's adapter for a run that continues one.

    Reported: `accuracy` (share of pairs whose winner has the higher implicit reward), `margin`
    (difference of implicit rewards), `reward_chosen`, `reward_rejected` (implicit rewards
    β·log π/π_ref), `log_loss` (−log σ(margin)).
    """

    kind: CheckpointKind = "policy"
    adapter = "policy"
    reported: tuple[str, ...] = ("accuracy", "margin", "reward_chosen", "reward_rejected", "log_loss")

    def __init__(self, backbone: Backbone, spec: RunSpec, settings: PreferenceSettings) -> None:
        self._backbone = backbone
        self._settings = settings
        start_adapter(backbone, self.adapter, spec, settings.lora)
        self._reference: str | None = None
        if spec.parent is not None:
            start_adapter(backbone, _REFERENCE, spec, settings.lora, trainable=False)
            self._reference = _REFERENCE
        self._remembered: dict[Example, Tensor] = {}

    def losses(self, batch: Batch, examples: list[Example], *, dropout: bool) -> Losses:
        """DPO over the pairs of each ranking."""
        policy = answer_log_probabilities(self._backbone, self.adapter, batch, dropout=dropout)
        reference = self._reference_log_probabilities(batch, examples)
        beta = self._settings.beta
        winners, losers = batch.winners, batch.losers
        pair_loss = dpo(
            policy[winners],
            policy[losers],
            reference[winners],
            reference[losers],
            beta=beta,
            loss=self._settings.loss,
            label_smoothing=self._settings.label_smoothing,
            reduction="none",
        )
        with torch.no_grad():
            rewards = beta * (policy - reference)
            margin = rewards[winners] - rewards[losers]
            statistics = {
                "accuracy": share_right(margin),
                "margin": margin,
                "reward_chosen": rewards[winners],
                "reward_rejected": rewards[losers],
                "log_loss": -torch.nn.functional.logsigmoid(margin),
            }
        return Losses(
            batch.mean_over_pairs(pair_loss),
            {name: batch.mean_over_pairs(values) for name, values in statistics.items()},
        )

    @torch.no_grad()
    def _reference_log_probabilities(self, batch: Batch, examples: list[Example]) -> Tensor:
        """(R,). The reference never changes, so in float32 each example is computed once, by itself.

        By itself, so that what is remembered does not depend on the batch it was first met in: a
        resumed run must compute the same bits. In bfloat16 the padding of a batch shows in the
        sums, so there the reference sees the very batch that the policy saw.
        """
        if self._backbone.dtype != torch.float32:
            return answer_log_probabilities(self._backbone, self._reference, batch)
        parts = []
        for example in examples:
            if example not in self._remembered:
                alone = collate([example], pad_id=0, device=batch.input_ids.device)
                self._remembered[example] = answer_log_probabilities(self._backbone, self._reference, alone)
            parts.append(self._remembered[example])
        return torch.cat(parts)
