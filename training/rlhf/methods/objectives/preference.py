"""The head `score`, fitted to rankings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from training.contract import ContractError, RewardSettings, RunSpec
from training.rlhf.loop.method import Outcome, Part
from training.rlhf.losses import MOST_COMPLETIONS, NOT_ORDERED
from training.rlhf.losses.ties import MOST_TIED, likeliest_log_tie
from training.rlhf.measures.baselines import length_log_loss, length_slope
from training.rlhf.measures.pair_figures import (
    ensemble_observations,
    pair_details,
    pair_figures,
    pair_observations,
)
from training.rlhf.methods.objectives.people import Kind, PeopleOffsets
from training.rlhf.methods.objectives.rankings import costs_of_rankings, surprise_of_rankings
from training.rlhf.methods.resampling import resample
from training.rlhf.model.backbone import SCORE, Backbone
from training.rlhf.runtime.run_folder import log
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import Batch

LOG_TIE = f"{SCORE}.log_tie"
"""The learned log odds of ties, log δ_2 … log δ_12; Davidson's model of pairs has the first alone."""


class PreferenceObjective:
    """Rankings cost what `objectives.rankings` says of the loss that the settings name, plus centring.

    With `ensemble` the head has several outputs and every one its own resample of the training judgments;
    the score is their mean. A judgment's cost is the mean of w · cost over the outputs, w ~ Poisson(1), and
    1 for held-out judgments. With `annotator_heads` or `group_heads` every judgment is costed at the scores
    of its annotator and group (`objectives.people`); the score is what they have in common.

    Figures of the score: `accuracy`, `margin`, `log_loss` and more, see `pair_figures`; of held-out pairs
    `length_log_loss`, of the length predictor in `baselines`. Of models of ties and whole rankings
    `ranking_log_loss`, −log p of a whole ranking, of Davidson's model of one of its pairs; and `log_tie_2`,
    the log odds of two tying. Of ensembles `spread`, the standard deviation of a margin over the outputs.
    With heads of annotators or groups `own_accuracy` and `own_log_loss`, of their own scores.
    """

    name = SCORE

    def __init__(self, backbone: Backbone, adapter: str, spec: RunSpec, settings: RewardSettings) -> None:
        self._backbone = backbone
        self._adapter = adapter
        self._settings = settings
        self._seed = spec.seed
        self._continues = SCORE in backbone.heads(adapter)
        if not self._continues:
            backbone.add_head(adapter, SCORE, seed=spec.seed, outputs=settings.ensemble)
        heads = len(backbone.head_state(adapter)[SCORE])
        if heads != settings.ensemble:
            raise ContractError(
                f"reward settings, ensemble: the parent's score has {heads} outputs, not "
                f"{settings.ensemble}; continue with {heads} or start from the base"
            )
        self._models_ties = settings.loss == "davidson" or settings.ties == "davidson"
        self._continues_ties = LOG_TIE in backbone.extras(adapter)
        if self._models_ties and not self._continues_ties:
            backbone.add_extra(adapter, LOG_TIE, torch.zeros(MOST_TIED - 1))
        self._offsets = _offsets(backbone, adapter, settings)
        self._trained: frozenset[str] = frozenset()
        self._length_slope = 0.0

    def begin(self, train: Sequence[Example]) -> None:
        """Let the odds of ties begin where the training data put them; give every annotator a head."""
        teaching = [example for example in train if self.weight(example)]
        self._trained = frozenset(example.judgment for example in teaching)
        self._length_slope = length_slope(teaching)
        if teaching and not any(example.pairs for example in teaching):
            log.warning(
                "In none of %d rankings an answer is judged better than another: from ties alone a score "
                "learns that answers are equal",
                len(teaching),
            )
        if self._models_ties and not self._continues_ties:
            likeliest = likeliest_log_tie([ranks for example in teaching for ranks in self._choices(example)])
            with torch.no_grad():
                self._backbone.extra(self._adapter, LOG_TIE).copy_(likeliest)  # noqa: S610 - not Django's
        for offsets in self._offsets:
            offsets.begin(teaching)

    def weight(self, example: Example) -> float:
        """The judgment's weight where it decides a pair or, where ties are an outcome, ranks two answers."""
        compared = example.compared
        if compared > MOST_COMPLETIONS and self._settings.loss == "plackett_luce":
            raise ContractError(
                f"judgment {example.judgment}: it ranks {compared} answers, and loss 'plackett_luce' serves "
                f"{MOST_COMPLETIONS}; choose loss 'bradley_terry' or 'davidson'"
            )
        teaches = compared > 1 if self._models_ties else bool(example.pairs)
        return example.weight if teaches else 0.0

    def outcome(self, states: Tensor, batch: Batch, examples: list[Example]) -> Outcome:
        """Return the loss of every judgment, plus the penalty on offsets of annotators and groups."""
        scores = self._backbone.outputs(self._adapter, states[batch.last])
        adjusted, penalty = scores, torch.zeros(len(examples), device=scores.device)
        for offsets in self._offsets:
            offset, distance = offsets.offsets(states, batch, examples)
            adjusted = adjusted + offset.unsqueeze(-1)
            penalty = penalty + self._settings.annotator_penalty * distance
        cost = (self._times(examples, batch) * self._costs(adjusted, batch)).mean(0)
        if self._offsets:
            cost = cost + penalty
        return Outcome({self.name: Part(1.0, cost)}, self._observed(scores, adjusted, batch, examples))

    def figures(self, observed: Mapping[str, Tensor], *, held_out: bool) -> dict[str, float]:
        """Return figures on the pairs of scores; means of what else was observed."""
        figures = pair_figures(observed, held_out=held_out)
        if held_out and len(observed["share"]):
            figures["length_log_loss"] = length_log_loss(
                observed["length_ratio"], observed["share"], slope=self._length_slope
            )
        for name in ("ranking_log_loss", "log_tie_2"):
            if len(values := observed.get(name, torch.empty(0))):
                figures[name] = float(values.double().mean())
        return figures

    def details(self, observed: Mapping[str, Tensor]) -> dict[str, Any]:
        """Reliability and length bias of the score."""
        return pair_details(observed)

    def _choices(self, example: Example) -> list[tuple[int, ...]]:
        """Return the rankings that an example's ties are counted from: itself, or its pairs."""
        compared = tuple(rank for rank in example.ranks if rank)
        if self._settings.loss == "plackett_luce":
            return [compared]
        return [pair for pair in combinations(compared, 2) if pair != (NOT_ORDERED, NOT_ORDERED)]

    def _costs(self, scores: Tensor, batch: Batch) -> Tensor:
        """(R, outputs) to (outputs, E)."""
        costs = [
            costs_of_rankings(scores[:, output], batch, self._settings, log_tie=self._log_tie)
            for output in range(scores.shape[1])
        ]
        return torch.stack(costs)

    def _times(self, examples: list[Example], batch: Batch) -> Tensor:
        """(outputs, E): how often each output learns from each judgment; held-out ones count once in all."""
        count = self._settings.ensemble
        if count == 1:
            return torch.ones(1, len(examples), device=batch.last.device)
        drawn = resample([example.judgment for example in examples], heads=count, seed=self._seed)
        trained = torch.tensor([example.judgment in self._trained for example in examples])
        return torch.where(trained, drawn, 1.0).to(batch.last.device)

    @property
    def _log_tie(self) -> Tensor | None:
        return self._backbone.extra(self._adapter, LOG_TIE) if self._models_ties else None  # noqa: S610

    @torch.no_grad()
    def _observed(
        self, scores: Tensor, adjusted: Tensor, batch: Batch, examples: list[Example]
    ) -> dict[str, Tensor]:
        score = scores.mean(-1)
        observed = pair_observations(batch, examples, score)
        if self._settings.loss != "bradley_terry":
            observed["ranking_log_loss"] = surprise_of_rankings(
                score, batch, self._settings, log_tie=self._log_tie
            )
        if (log_tie := self._log_tie) is not None:
            observed["log_tie_2"] = log_tie[:1].detach().clone()
        if self._settings.ensemble > 1:
            observed |= ensemble_observations(batch, scores)
        if self._offsets:
            margin = adjusted.mean(-1)[batch.winners] - adjusted.mean(-1)[batch.losers]
            heads = torch.stack([offsets.known(examples) for offsets in self._offsets])
            known = heads.any(0).to(margin.device)
            # NaN where an annotator has no head of their own.
            observed["own_margin"] = margin.where(known[batch.pair_example], torch.nan)
        return observed


def _offsets(backbone: Backbone, adapter: str, settings: RewardSettings) -> tuple[PeopleOffsets, ...]:
    """Return the offsets that are learned step by step; those to frozen features are fitted at once."""
    if settings.is_fitted_at_once:
        return ()
    kinds: tuple[tuple[Kind, bool], ...] = (
        ("annotator", settings.annotator_heads),
        ("group", settings.group_heads),
    )
    return tuple(PeopleOffsets(backbone, adapter, SCORE, kind) for kind, enabled in kinds if enabled)
