"""Heads on whole completions, fitted to rankings and to missing information."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from annotation.agreement.intervals import wilson_interval
from training.contract import ContractError
from training.contract.methods.reward import CompletenessHead, RewardSettings
from training.contract.run import RunSpec
from training.rlhf.loop.method import Outcome, Part
from training.rlhf.losses import (
    MOST_COMPLETIONS,
    MOST_TIED,
    NOT_ORDERED,
    bradley_terry,
    davidson,
    likeliest_log_tie,
    plackett_luce,
)
from training.rlhf.measures.linear_choice import covariate_values
from training.rlhf.measures.pairs import (
    ensemble_observations,
    length_log_loss,
    length_slope,
    pair_details,
    pair_figures,
    pair_observations,
    resample,
)
from training.rlhf.methods.people import Kind, PeopleOffsets
from training.rlhf.model.backbone import COVARIATES, SCORE, Backbone
from training.rlhf.runtime.run_folder import log
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import Batch


def costs_of_rankings(
    scores: Tensor, batch: Batch, settings: RewardSettings, *, log_tie: Tensor | None
) -> Tensor:
    """Return each example's loss, centring included: (R,) to (E,). 0 for an example without a ranking.

    log_tie: log δ_2 … of a model of ties; None for the others.

        bradley_terry   mean over the decided pairs of −log σ(s⁺ − s⁻ − m)
        davidson        mean over all pairs of −log p(what happened), ties among it
        plackett_luce   −log p(ranking) / its choices, which are the answers ranked, less one where all are:
                        a ranking without ties is made of so many

    Answers that a partial ranking leaves without an order are below all ranked ones: each makes a pair with
    every ranked one and none with another.

    A ranking counts as one judgment under each, however many answers it has. All three are the same loss on a
    decided pair, but for what Davidson gives to the tie; and they are of one scale on longer rankings: where
    all K scores are equal the best answer's slope is −1/K under Bradley-Terry and Plackett-Luce alike. The
    value differs: ln 2 = 0.69 against ln(K!)/(K − 1), which is 1.06 for four.

    Centring adds its weight times the mean of (s_i + s_j)² over the pairs that count, decided ones under
    Bradley-Terry and all under the others: only differences of scores are observed, and this keeps their
    origin near 0 (Eisenstein et al. 2023).
    """
    if settings.loss == "bradley_terry":
        return _decided_pairs(scores, batch, settings)
    table, ranks = _ranked(scores, batch)
    if settings.loss == "davidson" and log_tie is not None:
        cost = _all_pairs(table, ranks, log_tie)
    else:
        cost = _whole(table, ranks, settings, log_tie) / choices_of_rankings(ranks)
    return cost + settings.centring * _mean_squared_sum(table, ranks)


def surprise_of_rankings(
    scores: Tensor, batch: Batch, settings: RewardSettings, *, log_tie: Tensor | None
) -> Tensor:
    """−log p of each ranking of two answers or more, undivided; under Davidson the mean of its pairs.

    (R,) to (examples with a ranking,). Under Efron's and Breslow's approximations, of which no
    probability is left, it is the exact one.
    """
    table, ranks = _ranked(scores, batch)
    if settings.loss == "davidson" and log_tie is not None:
        values = _all_pairs(table, ranks, log_tie)
    else:
        values = plackett_luce(
            table, ranks, ties="exact" if log_tie is None else "davidson", log_tie=log_tie, reduction="none"
        )
    return values[batch.compared > 1]


def choices_of_rankings(ranks: Tensor) -> Tensor:
    """(E, K) to (E,): the choices that a ranking is made of, at least 1.

    The last answer left is no choice. Where several are left without an order, the last ranked one was.
    """
    ranked, left = (ranks > 0).sum(-1), (ranks == NOT_ORDERED).any(-1)
    return (ranked - 1 + left.long()).clamp(min=1)


def _decided_pairs(scores: Tensor, batch: Batch, settings: RewardSettings) -> Tensor:
    chosen, rejected = scores[batch.winners], scores[batch.losers]
    cost = bradley_terry(
        chosen,
        rejected,
        margin=settings.margin_per_strength * batch.strength[batch.pair_example],
        label_smoothing=settings.label_smoothing,
        reduction="none",
    )
    return batch.mean_over_pairs(cost + settings.centring * (chosen + rejected) ** 2)


def _ranked(scores: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Scores and ranks of the compared answers, (E, K) each for K in the longest; rank 0 beyond."""
    compared = batch.ranks != 0
    most = max(1, int(compared.sum(-1).max()))
    columns = (~compared).int().argsort(dim=-1, stable=True)[:, :most]
    return scores[batch.table.gather(1, columns)], batch.ranks.gather(1, columns)


def _all_pairs(table: Tensor, ranks: Tensor, log_tie: Tensor) -> Tensor:
    first, second = torch.triu_indices(table.shape[1], table.shape[1], 1, device=table.device)
    # Below every ranked one, whatever its rank.
    order = ranks.masked_fill(ranks == NOT_ORDERED, torch.iinfo(ranks.dtype).max // 2)
    outcome = (order[:, second] - order[:, first]).sign()
    cost = davidson(table[:, first], table[:, second], outcome, log_tie[0], reduction="none")
    return _mean_over_pairs(cost, ranks)


def _whole(table: Tensor, ranks: Tensor, settings: RewardSettings, log_tie: Tensor | None) -> Tensor:
    return plackett_luce(table, ranks, ties=settings.ties, log_tie=log_tie, reduction="none")


def _mean_squared_sum(table: Tensor, ranks: Tensor) -> Tensor:
    first, second = torch.triu_indices(table.shape[1], table.shape[1], 1, device=table.device)
    return _mean_over_pairs((table[:, first] + table[:, second]) ** 2, ranks)


def _mean_over_pairs(values: Tensor, ranks: Tensor) -> Tensor:
    """(E, pairs of columns) to (E,): over those pairs that are ordered or tied; 0 where none are."""
    first, second = torch.triu_indices(ranks.shape[1], ranks.shape[1], 1, device=ranks.device)
    compared, ranked = ranks != 0, ranks > 0
    both = compared[:, first] & compared[:, second] & (ranked[:, first] | ranked[:, second])
    return torch.where(both, values, 0.0).sum(-1) / both.sum(-1).clamp(min=1)


# ── The head `score`, fitted to rankings ──

LOG_TIE = f"{SCORE}.log_tie"
"""The learned log odds of ties, log δ_2 … log δ_12; Davidson's model of pairs has the first alone."""


class PreferenceObjective:
    """Rankings cost what `objectives.rankings` says of the loss that the settings name, plus centring.

    With `ensemble` the head has several outputs and every one its own resample of the training judgments;
    the score is their mean. A judgment's cost is the mean of w · cost over the outputs, w ~ Poisson(1), and
    1 for held-out judgments. With `annotator_heads` or `group_heads` every judgment is costed at the scores
    of its annotator and group (`PeopleOffsets`); the score is what they have in common. With `covariates` it
    is costed at the scores plus the coefficients times the answers of `covariate_values`.

    Figures of the score: `accuracy`, `margin`, `log_loss` and more, see `pair_figures`; of held-out pairs
    `length_log_loss`, of the length predictor in `pairs`. Of models of ties and whole rankings
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
        if settings.covariates and COVARIATES not in backbone.extras(adapter):
            backbone.add_extra(adapter, COVARIATES, torch.zeros(len(settings.covariates)))
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
        if self._settings.covariates:
            values = covariate_values(examples, self._settings.covariates)
            coefficients = self._backbone.extra(self._adapter, COVARIATES)  # noqa: S610 - not Django's
            rows = torch.cat([batch.table[place, : len(item.answers)] for place, item in enumerate(examples)])
            explained = torch.tensor(values, dtype=scores.dtype, device=scores.device) @ coefficients
            adjusted = adjusted + torch.zeros_like(scores[:, 0]).index_add(0, rows, explained).unsqueeze(-1)
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


# ── A head on the whole answer, fitted to what missing information says of two answers (Wu et al. 2023) ──


class CompletenessObjective:
    """Of two answers to one prompt that were read for what they leave out, the one that lacks fewer things
    is the more complete: −log σ(r⁺ − r⁻), the mean over a judgment's pairs, plus centring.

    A corrected text lacks nothing, so it is more complete than an original that lacked something. Equal
    counts make no pair. The reward is read at the end token; it is higher for a more complete answer.

    Figures, by the head's name: `accuracy`, share of pairs ordered right, ½ where both are equal; `margin`,
    r⁺ − r⁻; `log_loss`, without centring, log 2 for a head that knows nothing; each the mean over judgments.
    Held-out also `pairs`, their number, and `accuracy_low` and `accuracy_high`, its 95 % interval with the
    judgments as trials.
    """

    def __init__(
        self, backbone: Backbone, adapter: str, spec: RunSpec, head: CompletenessHead, *, centring: float
    ) -> None:
        self.name = head.name
        self._backbone = backbone
        self._adapter = adapter
        self._head = head
        self._centring = centring
        if head.name not in backbone.heads(adapter):
            backbone.add_head(adapter, head.name, seed=spec.seed)

    def begin(self, train: Sequence[Example]) -> None:
        """Refuses training data without a pair."""
        if not any(self._pairs(example) for example in train):
            counted = f" in {', '.join(self._head.categories)}" if self._head.categories else ""
            raise ContractError(
                f"completeness head {self.name!r}: no two training answers to one prompt differ in what they "
                f"lack{counted}, and no corrected answer lacked anything; say of more answers what is "
                "missing, correct some, or leave the head out"
            )

    def weight(self, example: Example) -> float:
        """Return the judgment's weight where two of its answers differ in how much they lack."""
        return example.weight if self._pairs(example) else 0.0

    def outcome(self, states: Tensor, batch: Batch, examples: list[Example]) -> Outcome:
        """Return the loss of every judgment's pairs."""
        rewards = self._backbone.score(self._adapter, states[batch.last], head=self.name)
        pairs: list[tuple[int, int, int]] = []
        share: list[float] = []
        first = 0
        for index, example in enumerate(examples):
            measured = self._pairs(example)
            pairs += [(first + more, first + less, index) for more, less in measured]
            share += [1 / len(measured) for _ in measured]
            first += len(example.answers)
        table = torch.tensor(pairs, dtype=torch.long, device=rewards.device).reshape(-1, 3)
        shares = torch.tensor(share, device=rewards.device)
        more, less, of_example = rewards[table[:, 0]], rewards[table[:, 1]], table[:, 2]
        costs = bradley_terry(more, less, reduction="none")
        # Only differences are observed; this keeps their sum near 0 (Eisenstein et al. 2023).
        costs = costs + self._centring * (more + less) ** 2
        loss = torch.zeros(batch.examples, device=rewards.device).index_add(0, of_example, shares * costs)
        observed = {"margin": (more - less).detach(), "share": shares}
        return Outcome(
            {self.name: Part(self._head.weight, loss)},
            {f"{self.name}.{name}": values for name, values in observed.items()},
        )

    def figures(self, observed: Mapping[str, Tensor], *, held_out: bool) -> dict[str, float]:
        """See the class."""
        margin, share = (observed[f"{self.name}.{name}"].double().cpu() for name in ("margin", "share"))
        if not len(margin):
            return {}
        judgments = float(share.sum())
        values = {
            "accuracy": (margin.sign() + 1) / 2,
            "margin": margin,
            "log_loss": torch.nn.functional.softplus(-margin),
        }
        result = {name: float((share * value).sum()) / judgments for name, value in values.items()}
        if held_out:
            trials = round(judgments)
            low, high = wilson_interval(min(1.0, result["accuracy"]) * trials, trials)
            result |= {"pairs": float(len(margin)), "accuracy_low": low, "accuracy_high": high}
        return {f"{self.name}_{name}": value for name, value in result.items()}

    def details(self, observed: Mapping[str, Tensor]) -> dict[str, Any]:
        """None."""
        del observed
        return {}

    def _pairs(self, example: Example) -> list[tuple[int, int]]:
        """(more complete, less complete) of an example's answers that were read."""
        counted = self._head.categories
        lacks = Counter(
            gap.answer for gap in example.labels.missing if not counted or gap.category in counted
        )
        read = example.labels.read_for_missing
        return [(a, b) for a in read for b in read if lacks[a] < lacks[b]]
