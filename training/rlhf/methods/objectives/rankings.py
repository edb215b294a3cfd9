"""Loss of a ranking under the scores of its completions.

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
Bradley-Terry and all under the others: only differences of scores are observed, and this keeps their origin
near 0 (Eisenstein et al. 2023).
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.contract import RewardSettings
from training.rlhf.losses import NOT_ORDERED, bradley_terry, davidson, plackett_luce
from training.rlhf.tokens.packing import Batch


def costs_of_rankings(
    scores: Tensor, batch: Batch, settings: RewardSettings, *, log_tie: Tensor | None
) -> Tensor:
    """Return each example's loss, centring included: (R,) to (E,). 0 for an example without a ranking.

    log_tie: log δ_2 … of a model of ties; None for the others.
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
