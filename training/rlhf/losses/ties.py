"""Initial log odds of ties: the maximum-likelihood value on the training data."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from training.rlhf.losses import MOST_COMPLETIONS, plackett_luce

MOST_TIED = MOST_COMPLETIONS
"""As many answers as may share a rank under Davidson-Luce."""

_PULL = 0.01
"""Weight of the squared log odds against one ranking: a size of tie that never occurred would otherwise have
log odds of minus infinity."""


def likeliest_log_tie(rankings: Sequence[Sequence[int]]) -> Tensor:
    """log δ_2 … log δ_12 that make the rankings' ties likeliest if all rewards were equal: (11,) float32.

    Ranks as in `losses.plackett_luce`; rankings of different lengths may come together. AdamW moves a
    parameter by about the learning rate a step, which is set for an adapter's weights: from 0 the log odds
    would not arrive in a run, while rewards are pulled together or apart to make up for them.
    """
    width = max((len(ranks) for ranks in rankings), default=0)
    counts: dict[tuple[int, ...], int] = {}
    for ranks in rankings:
        # With equal rewards it matters how many share each rank, and not who: sorted, most are the same.
        key = tuple(sorted(ranks, reverse=True)) + (0,) * (width - len(ranks))
        counts[key] = counts.get(key, 0) + 1
    log_tie = torch.zeros(MOST_TIED - 1, dtype=torch.float64, requires_grad=True)
    if not width:
        return log_tie.detach().float()
    distinct = torch.tensor(sorted(counts))
    weight = torch.tensor([float(counts[key]) for key in sorted(counts)], dtype=torch.float64)
    scores = torch.zeros(distinct.shape, dtype=torch.float64)

    def cost() -> Tensor:
        optimiser.zero_grad()
        values = plackett_luce(
            scores, distinct, ties="davidson", log_tie=log_tie, weight=weight, reduction="none"
        )
        total = (values.sum() + _PULL * (log_tie**2).sum()) / weight.sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimiser = torch.optim.LBFGS([log_tie], max_iter=200, tolerance_grad=1e-9, line_search_fn="strong_wolfe")
    with torch.enable_grad():
        optimiser.step(cost)  # type: ignore[no-untyped-call]
    return log_tie.detach().float()
