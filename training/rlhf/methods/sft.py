"""Supervised fine-tuning of a policy on texts that people wrote or chose (Ouyang et al. 2022)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from training.contract.checkpoint import CheckpointKind
from training.contract.methods.policy import SftSettings
from training.contract.run import RunSpec
from training.rlhf.loop.log_probabilities import (
    Reference,
    answer_log_probabilities,
    ratio_figures,
    ratio_observations,
)
from training.rlhf.loop.method import Outcome, Part, TrainingMethod, start_adapter
from training.rlhf.model.backbone import Backbone
from training.rlhf.tokens.example import Example, UsedLabels
from training.rlhf.tokens.packing import Batch


class SupervisedFineTuning(TrainingMethod):
    """Every token of an answer costs −log π, its end token too; the prompt's cost nothing.

    A text is one example with one answer. With `normalise: token` a step's loss is the mean over all its
    tokens, with `sequence` the mean over its answers of the mean over their tokens; either over the whole
    step, however it is cut into passes.

    Figures: `log_loss` (−log π per token, every token alike), `perplexity` (its exponential) and
    `answer_tokens`; of an evaluation also `log_ratio` and `log_ratio_per_token` against the policy that
    training started from, see `ratio_figures`.
    """

    kind: CheckpointKind = "policy"
    adapter = "policy"

    def __init__(
        self, backbone: Backbone, spec: RunSpec, settings: SftSettings, *, cache: Path | None = None
    ) -> None:
        self._backbone = backbone
        self._by_token = settings.normalise == "token"
        start_adapter(backbone, self.adapter, spec, settings.trained)
        self._reference = Reference(backbone, spec, settings.trained, cache=cache)
        self.wanted = UsedLabels(
            ranks="none",
            written=frozenset(settings.sources),
            nothing=f"has no text to be imitated ({', '.join(settings.sources)})",
            remedy="Ask for demonstrations or corrections, or name other sources",
        )

    def weights(self, example: Example) -> Mapping[str, float]:
        """Return the text's weight, times its tokens where every token counts the same."""
        tokens = sum(len(answer.ids) - answer.learned_start for answer in example.answers)
        return {"sft": example.weight * (tokens if self._by_token else 1)}

    def outcome(self, batch: Batch, examples: list[Example], *, dropout: bool) -> Outcome:
        """Return the mean of −log π over each text's tokens."""
        policy = answer_log_probabilities(self._backbone, self.adapter, batch, dropout=dropout)
        if torch.is_grad_enabled():
            observed = {"answer_tokens": batch.answer_tokens.to(policy.dtype)}
        else:
            # Only an evaluation, which takes no gradient, is worth the reference's pass.
            observed = ratio_observations(batch, policy, self._reference.log_probabilities(batch, examples))
        zeros = policy.new_zeros(batch.examples)
        tokens = zeros.index_add(0, batch.answer_example, observed["answer_tokens"])
        loss = -zeros.index_add(0, batch.answer_example, policy) / tokens
        return Outcome({"sft": Part(1.0, loss)}, observed | {"log_probability": policy.detach()})

    def figures(self, observed: Mapping[str, Tensor], *, held_out: bool) -> dict[str, float]:
        """Log-loss, perplexity, lengths; held out also the distance from the start."""
        tokens = observed["answer_tokens"].double().sum()
        if not tokens:
            return {}
        log_loss = float(-observed["log_probability"].double().sum() / tokens)
        # A diverging run's log-loss may have an exponential that no float holds.
        perplexity = math.exp(log_loss) if log_loss < 700 else math.inf
        return {"log_loss": log_loss, "perplexity": perplexity, **ratio_figures(observed)}
