"""Direct preference optimisation of a policy on an adapter (Rafailov et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from training.contract import ContractError
from training.contract.checkpoint import CheckpointKind
from training.contract.methods.policy import PreferenceSettings
from training.contract.run import RunSpec
from training.rlhf.loop.log_probabilities import (
    Reference,
    answer_log_probabilities,
    ratio_figures,
    ratio_observations,
)
from training.rlhf.loop.method import Outcome, Part, TrainingMethod, start_adapter
from training.rlhf.loop.training_loop import examples_of_step, steps_per_epoch
from training.rlhf.losses import (
    MOST_COMPLETIONS,
    MOST_TIED,
    Ties,
    dpo,
    dpo_plackett_luce,
    likeliest_log_tie,
    log_odds,
    odds_ratio,
    simpo,
)
from training.rlhf.measures.pairs import pair_details, pair_figures, pair_observations
from training.rlhf.methods.objectives.rankings import choices_of_rankings
from training.rlhf.model.backbone import Backbone
from training.rlhf.runtime.processes import Processes
from training.rlhf.tokens.example import Example, UsedLabels
from training.rlhf.tokens.packing import Batch

LOG_TIE = "policy.log_tie"
"""The learned log odds of ties, log δ_2 … log δ_12, saved beside the adapter."""


class DirectPreference(TrainingMethod):
    """Direct preference optimisation: a loss on log-ratios of policy and reference.

    With loss `plackett_luce` a whole ranking costs −log p of it under its implied rewards (appendix A.3),
    divided by its number of choices: its answers less one, or of a partial ranking those that it ranks. With
    ties `davidson` answers that are all tied teach too, and the log odds of ties are learned, beginning where
    the training data's ties are likeliest under equal rewards. With the other losses every decided pair of a
    ranking costs its DPO loss, and a ranking the mean of its pairs. So a ranking counts as one judgment under
    each.

    Implied rewards are β·log π/π_ref, of the whole answer or, `length_normalised`, of its tokens' mean. The
    reference is that of the settings, see `Reference`.

    Two losses have no reference and compare l, the mean of log π over an answer's tokens: `simpo`, whose
    implied reward is β·l, and `orpo`, whose implied reward is the log odds of e^l; its loss on pairs has the
    weight β beside −l of the answers ranked first. The reference is then asked in evaluations alone, for
    `log_ratio`.

    With `correction_tokens` `changed` the log-probabilities of a correction and its original are summed over
    the tokens in which the two differ; the tokens before the first change cancel in any case.

    `sft_weight` adds the mean of −log π per token of the answers ranked first where there is a worse one.

    Figures: `accuracy` (share of pairs whose winner has the higher implied reward), `margin` (difference
    of implied rewards), `reward_chosen`, `reward_rejected`, `log_loss` (−log σ(margin)), see
    `pair_figures`; `log_ratio`, `log_ratio_per_token`, `answer_tokens`, see `ratio_figures`; for
    `plackett_luce` also `ranking_log_loss`, −log p of a whole ranking (under Efron's and Breslow's
    approximations the exact one), and `log_tie_2`, log δ of two answers, where it is learned.
    """

    kind: CheckpointKind = "policy"
    adapter = "policy"

    def __init__(
        self, backbone: Backbone, spec: RunSpec, settings: PreferenceSettings, *, cache: Path | None = None
    ) -> None:
        self._backbone = backbone
        self._settings = settings
        self._seed = spec.seed
        self._train: Sequence[Example] = []
        start_adapter(backbone, self.adapter, spec, settings.trained)
        self._reference = Reference(backbone, spec, settings.trained, cache=cache)
        self._base = self._reference
        if self._reference.adapter is not None:
            self._base = Reference(backbone, spec, settings.trained, cache=cache, base=True)
        self._learns_ties = settings.loss == "plackett_luce" and settings.ties == "davidson"
        self._continues_ties = LOG_TIE in backbone.extras(self.adapter)
        if self._learns_ties and not self._continues_ties:
            backbone.add_extra(self.adapter, LOG_TIE, torch.zeros(MOST_TIED - 1))
        self.wanted = UsedLabels(
            ranks="tied" if self._learns_ties else "decided",
            corrections=settings.use_corrections,
            changes_alone=settings.correction_tokens == "changed",
        )

    @property
    def _log_tie(self) -> nn.Parameter:
        return self._backbone.extra(self.adapter, LOG_TIE)  # noqa: S610 - no query set of Django's

    def begin(self, train: Sequence[Example]) -> None:
        """Log odds of ties begin at the data's; those of a parent go on from where they are."""
        if self._learns_ties and not self._continues_ties:
            start = likeliest_log_tie([example.ranks for example in train])
            with torch.no_grad():
                self._log_tie.copy_(start)

        self._train = train

    def prepare(self, examples: list[Example], processes: Processes) -> None:
        """Plan the packed rows in which the reference is computed: the first epoch's, then the held-out.

        Several processes would each compute the rows of the others: there every example goes alone.
        """
        if processes.world > 1:
            return
        planned = [examples]
        if self._train and self._settings.has_reference:
            optimiser, train = self._settings.optimiser, self._train
            steps = range(steps_per_epoch(len(train), optimiser))
            epoch = [examples_of_step(train, step, seed=self._seed, settings=optimiser) for step in steps]
            planned, self._train = [*epoch, examples], []
        for reference in {self._reference, self._base}:
            for some in planned:
                reference.plan(some, tokens=self._settings.optimiser.micro_batch_tokens)

    def weights(self, example: Example) -> Mapping[str, float]:
        """Return a ranking's weight where it teaches: a preference, an answer to imitate."""
        compared = example.compared
        if compared > MOST_COMPLETIONS and self._settings.loss == "plackett_luce":
            raise ContractError(
                f"judgment {example.judgment}: it ranks {compared} answers, and loss 'plackett_luce' serves "
                f"{MOST_COMPLETIONS}; choose a loss on pairs"
            )
        decides = bool(example.pairs)
        teaches = decides or (self._learns_ties and example.ties)
        weights = {"preference": example.weight if teaches else 0.0}
        if self._imitation:
            weights["sft"] = example.weight if decides else 0.0
        return weights

    @property
    def _imitation(self) -> float:
        """Return the weight of −log π per token of the answers ranked first."""
        return 1.0 if self._settings.loss == "orpo" else self._settings.sft_weight

    def outcome(self, batch: Batch, examples: list[Example], *, dropout: bool) -> Outcome:
        """Return the loss of each ranking, and the term of imitation."""
        settings = self._settings
        policy = answer_log_probabilities(self._backbone, self.adapter, batch, dropout=dropout)
        # A correction that only removes, or only adds, leaves one of its two answers without a token.
        tokens = batch.answer_tokens.clamp(min=1)
        if not settings.has_reference:
            return self._outcome_without_reference(batch, examples, policy, tokens)
        reference = self._reference.log_probabilities(batch, examples)
        base = self._base.log_probabilities(batch, examples)
        scale = tokens if settings.length_normalised else torch.ones_like(tokens)
        parts = {"preference": Part(1.0, self._preference(batch, policy / scale, reference / scale))}
        if self._imitation:
            parts["sft"] = Part(self._imitation, best_answers(batch, -policy / tokens))
        with torch.no_grad():
            rewards = settings.beta * (policy - reference) / scale
            observed = pair_observations(batch, examples, rewards)
            observed |= ratio_observations(batch, policy, reference, base)
            if settings.loss == "plackett_luce":
                ties = settings.ties if settings.ties == "davidson" else "exact"
                surprise = self._rankings(batch, policy / scale, reference / scale, ties)
                observed["ranking_log_loss"] = surprise[batch.compared > 1]
        return Outcome(parts, observed)

    def _outcome_without_reference(
        self, batch: Batch, examples: list[Example], policy: Tensor, tokens: Tensor
    ) -> Outcome:
        """Return the outcome of a loss on log-probabilities per token. policy, tokens: (R,)."""
        settings = self._settings
        level = policy / tokens
        chosen, rejected = level[batch.winners], level[batch.losers]
        if settings.loss == "simpo":
            weight, rewards = 1.0, settings.beta * level.detach()
            costs = simpo(
                chosen,
                rejected,
                beta=settings.beta,
                margin=settings.target_margin,
                label_smoothing=settings.label_smoothing,
                reduction="none",
            )
        else:
            weight, rewards = settings.beta, log_odds(level.detach())
            costs = odds_ratio(chosen, rejected, reduction="none")
        parts = {"preference": Part(weight, batch.mean_over_pairs(costs))}
        if self._imitation:
            parts["sft"] = Part(self._imitation, best_answers(batch, -level))
        observed = pair_observations(batch, examples, rewards)
        if torch.is_grad_enabled():
            observed["answer_tokens"] = batch.answer_tokens.to(policy.dtype)
        else:
            # Only an evaluation, which takes no gradient, is worth the reference's pass.
            reference = self._reference.log_probabilities(batch, examples)
            base = self._base.log_probabilities(batch, examples)
            observed |= ratio_observations(batch, policy, reference, base)
        return Outcome(parts, observed)

    def _rankings(self, batch: Batch, policy: Tensor, reference: Tensor, ties: Ties) -> Tensor:
        """(E,) −log p of each ranking. policy, reference: (R,)."""
        return dpo_plackett_luce(
            policy[batch.table],
            reference[batch.table],
            batch.ranks,
            beta=self._settings.beta,
            ties=ties,
            log_tie=self._log_tie if self._learns_ties else None,
            reduction="none",
        )

    def _preference(self, batch: Batch, policy: Tensor, reference: Tensor) -> Tensor:
        """(E,) what each ranking costs. policy, reference: (R,)."""
        settings = self._settings
        if settings.loss == "plackett_luce":
            costs = self._rankings(batch, policy, reference, settings.ties)
            return costs / choices_of_rankings(batch.ranks)
        winners, losers = batch.winners, batch.losers
        pair_loss = dpo(
            policy[winners],
            policy[losers],
            reference[winners],
            reference[losers],
            beta=settings.beta,
            loss=settings.loss,
            label_smoothing=settings.label_smoothing,
            reduction="none",
        )
        return batch.mean_over_pairs(pair_loss)

    def figures(self, observed: Mapping[str, Tensor], *, held_out: bool) -> dict[str, float]:
        """Return figures on the pairs of implied rewards and on the distance from the reference."""
        figures = pair_figures(observed, held_out=held_out) | ratio_figures(observed)
        if len(surprise := observed.get("ranking_log_loss", torch.empty(0))):
            figures["ranking_log_loss"] = float(surprise.double().mean())
        if self._learns_ties:
            figures["log_tie_2"] = float(self._log_tie[0].detach())
        return figures

    def details(self, observed: Mapping[str, Tensor]) -> dict[str, Any]:
        """Reliability and length bias of the implied rewards."""
        result = pair_details(observed)
        return {"preference": result} if result else {}


def best_answers(batch: Batch, values: Tensor) -> Tensor:
    """(R,) to (E,): the mean over the answers ranked first; 0 for an example without a ranking."""
    ranked = batch.ranks > 0
    best = batch.ranks.masked_fill(~ranked, torch.iinfo(batch.ranks.dtype).max).amin(-1, keepdim=True)
    first = ranked & (batch.ranks == best)
    return torch.where(first, values[batch.table], 0.0).sum(-1) / first.sum(-1).clamp(min=1)
