"""Losses on preferences: pure functions on tensors, in float32 at least.

Every function returns the mean over its rows, or one value per row with `reduction="none"`.
Where rows have weights the mean is Σ w·l / Σ w: weight 2 equals the row twice, weight 0 the
row left out; with `reduction="none"` each row's value is w·l.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Reduction = Literal["mean", "none"]
DpoLoss = Literal["sigmoid", "ipo", "hinge", "robust"]
DpoTerm = Callable[[Tensor, float], Tensor]
Ties = Literal["exact", "efron", "breslow", "davidson"]

# What log 0 is taken for where a logarithm of a sum follows: minus infinity has the same
# value there, but gives NaN as gradient.
_LOG_ZERO = -1e30
MOST_COMPLETIONS = 12
"""Exact ties and Davidson-Luce walk the subsets of K completions: 2^K states."""
NOT_ORDERED = -1
"""Rank of a completion that a partial ranking leaves below all ranked ones, without an order among those."""


_DPO_TERMS: dict[str, DpoTerm] = {
    "sigmoid": lambda h, beta: -F.logsigmoid(beta * h),
    "ipo": lambda h, beta: (h - 1 / (2 * beta)) ** 2,
    "hinge": lambda h, beta: torch.relu(1 - beta * h),
    "robust": lambda h, beta: -F.logsigmoid(beta * h),
}


def _reduce(values: Tensor, weight: Tensor | None, reduction: Reduction) -> Tensor:
    if reduction not in ("mean", "none"):
        raise ValueError(f"reduction {reduction!r} is not known; it is 'mean' or 'none'")
    if weight is None:
        return values if reduction == "none" else values.mean()
    weighted = weight * values
    return weighted if reduction == "none" else weighted.sum() / weight.sum()


def _at_least_float32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _require_smoothing(label_smoothing: float) -> None:
    if not 0.0 <= label_smoothing < 0.5:
        raise ValueError(f"label_smoothing {label_smoothing} must lie in [0, 0.5)")


def bradley_terry(
    chosen: Tensor,
    rejected: Tensor,
    *,
    margin: Tensor | float | None = None,
    weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Bradley-Terry: −log σ(h) with h = r⁺ − r⁻ − m, one value per pair.

    r⁺ `chosen`, r⁻ `rejected`: (pairs,). `margin` m: (pairs,) or one number, what the better
    answer must lead by (Touvron et al. 2023, equation 2). `label_smoothing` ε is the
    probability that a label is the wrong way round: −(1 − ε) log σ(h) − ε log σ(−h).
    Bradley & Terry 1952. Ties never arrive here; see `davidson`.
    """
    _require_smoothing(label_smoothing)
    lead = _at_least_float32(chosen) - _at_least_float32(rejected)
    if margin is not None:
        lead = lead - margin
    values = -(1 - label_smoothing) * F.logsigmoid(lead) - label_smoothing * F.logsigmoid(-lead)
    return _reduce(values, weight, reduction)


def davidson(
    left: Tensor,
    right: Tensor,
    outcome: Tensor,
    log_tie: Tensor,
    *,
    weight: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Davidson: a pair may tie, the likelier the closer the two rewards are.

    p(left) ∝ e^l, p(right) ∝ e^r, p(tie) ∝ ν e^((l + r) / 2), and the loss is −log p of
    what happened. left, right: rewards, (pairs,). outcome: (pairs,), 1 left won, 0 tie,
    −1 right won. log_tie: log ν, a scalar that may be learned. Davidson 1970, equation 2.1.
    """
    if not torch.isin(outcome, torch.tensor([-1, 0, 1], device=outcome.device)).all():
        raise ValueError("outcome must hold 1 (left), 0 (tie) and -1 (right) only")
    left, right = _at_least_float32(left), _at_least_float32(right)
    logits = torch.stack([right, log_tie + (left + right) / 2, left], dim=-1)
    happened = (outcome.long() + 1).unsqueeze(-1)
    return _reduce(-logits.log_softmax(-1).gather(-1, happened).squeeze(-1), weight, reduction)


def plackett_luce(
    scores: Tensor,
    ranks: Tensor,
    *,
    ties: Ties = "exact",
    log_tie: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Plackett-Luce: the ranking as one choice after another among what is left.

    Without ties −Σ_k log (e^{s_(k)} / Σ_{j not before k} e^{s_j}), one value per ranking.
    With ties:

    - exact: −log of the summed probability of all orders that agree with the ranking.
    - efron, breslow: the approximations of survival analysis (Efron 1977, Breslow 1974),
      which drop the constant log m! of a group of m and overlook, a little or wholly, that
      a group shrinks as it is chosen from.
    - davidson: Davidson-Luce, in which a tie is an outcome of its own. A set C of tied
      completions wins with p(C) ∝ δ_|C| exp(mean score of C) among all sets of at most D
      that are left; log_tie: (D − 1,), log δ_2 … log δ_D, and δ_1 = 1. Ties of more than D
      are refused.

    A partial ranking orders the best m of k: the others, of rank −1, are in the denominators of the
    choices and are never chosen themselves. That is the summed probability of all full rankings
    that agree with it; with k − 1 ranked it is the full ranking.

    scores: (batch, K). ranks: (batch, K) integers, 1 best, equal tied, −1 not ordered, below all
    ranked ones, 0 absent; gaps do not matter. weight: (batch,). Rows with fewer than two
    completions present, or none ranked, cost 0. Luce 1959; Plackett 1975; Firth, Kosmidis &
    Turner 2019, equation 2.
    """
    if scores.shape != ranks.shape or scores.ndim != 2:
        raise ValueError(
            f"scores {tuple(scores.shape)} and ranks {tuple(ranks.shape)} must both be (batch, K)"
        )
    if (ranks < NOT_ORDERED).any():
        raise ValueError(
            "ranks must count from 1, with 0 for a completion that is absent and -1 for one below all ranked "
            "ones that is not ordered"
        )
    if scores.shape[1] > MOST_COMPLETIONS and ties in ("exact", "davidson"):
        raise ValueError(f"ties={ties!r} serves rankings of at most {MOST_COMPLETIONS} completions")
    if (log_tie is not None) != (ties == "davidson"):
        raise ValueError("log_tie goes with ties='davidson', and only with it")
    scores = _at_least_float32(scores)
    if ties == "exact":
        values = _exact_ties(scores, ranks)
    elif log_tie is not None:
        values = _davidson_luce(scores, ranks, log_tie)
    elif ties in ("efron", "breslow"):
        values = _approximate_ties(scores, ranks, efron=ties == "efron")
    else:
        raise ValueError(f"ties {ties!r} is not known; it is one of exact, efron, breslow, davidson")
    return _reduce(values, weight, reduction)


def _log_sum(scores: Tensor, chosen: Tensor) -> Tensor:
    """Logarithm of the summed exponentials where `chosen`, over the last dimension."""
    return scores.masked_fill(~chosen, _LOG_ZERO).logsumexp(-1)


def _exact_ties(scores: Tensor, ranks: Tensor) -> Tensor:
    """Sum over agreeing orders, by sets of completions already placed instead of by orders.

    log p(S) = logsumexp_i [log p(S − i) + s_i − log Σ_{j ∉ S − i} e^{s_j}] over the last
    one placed i: 2^K sets in place of up to K! orders. Sets of one size are one tensor.
    """
    batch, count = scores.shape
    present, ranked = ranks != 0, ranks > 0
    # The absent and those that are not ordered come last, in one order and at no cost.
    columns = torch.arange(1, count + 1, device=ranks.device)
    order = torch.where(ranked, ranks, ranks.amax(-1, keepdim=True) + columns)
    before = [frozenset[int]()]
    log_p = scores.new_zeros(batch, 1)
    for size in range(1, count + 1):
        log_step = _log_probability_of_next(scores, present, ranked, order, before)
        sets = [frozenset(members) for members in combinations(range(count), size)]
        index = {members: position for position, members in enumerate(before)}
        last = [sorted(members) for members in sets]
        origin = [[index[members - {item}] for item in sorted(members)] for members in sets]
        log_p = (log_p.unsqueeze(-1) + log_step)[:, origin, last].logsumexp(-1)
        before = sets
    return -log_p.squeeze(1)


def _log_probability_of_next(
    scores: Tensor, present: Tensor, ranked: Tensor, order: Tensor, placed_sets: list[frozenset[int]]
) -> Tensor:
    """(batch, sets, K): log-probability that a completion comes next once a set is placed.

    Those that the ranking does not allow next have (nearly) minus infinity.
    """
    placed = torch.tensor(
        [[item in members for item in range(scores.shape[1])] for members in placed_sets],
        device=scores.device,
    )
    order = order.unsqueeze(1)
    best = order.masked_fill(placed, torch.iinfo(order.dtype).max).amin(-1, keepdim=True)
    rest = _log_sum(scores.unsqueeze(1), present.unsqueeze(1) & ~placed).unsqueeze(-1)
    log_step = torch.where(ranked.unsqueeze(1), scores.unsqueeze(1) - rest, 0.0)
    return log_step.masked_fill(placed | (order != best), _LOG_ZERO)


def _groups(ranks: Tensor) -> list[tuple[Tensor, Tensor]]:
    """For each rank that occurs, best first: who holds it, and who is left with them; (batch, K) each."""
    values = sorted(set(ranks.flatten().tolist()) - {0, NOT_ORDERED})
    unordered = ranks == NOT_ORDERED
    return [(ranks == value, (ranks >= value) | unordered) for value in values]


def _approximate_ties(scores: Tensor, ranks: Tensor, *, efron: bool) -> Tensor:
    values = scores.new_zeros(scores.shape[0])
    for tied, left in _groups(ranks):
        size = tied.sum(-1)
        log_all = _log_sum(scores, left)
        # The share of the choice set that the group makes up; none where this row has no such rank.
        share = (_log_sum(scores, tied) - log_all).exp()
        for step in range(int(size.max())):
            occurs = step < size
            # Of rows with a smaller group nothing is taken away: log 0 gives NaN as gradient, even unused.
            gone = torch.where(occurs, share * step / size.clamp(min=1), 0.0)
            shrunk = torch.log1p(-gone) if efron else 0.0
            values = values + torch.where(occurs, log_all + shrunk, 0.0)
        values = values - torch.where(tied, scores, 0.0).sum(-1)
    return values


def _davidson_luce(scores: Tensor, ranks: Tensor, log_tie: Tensor) -> Tensor:
    count = scores.shape[1]
    most = min(len(log_tie) + 1, count)
    log_delta = torch.cat([scores.new_zeros(1), log_tie.to(scores.dtype)])
    subsets = [chosen for size in range(1, most + 1) for chosen in combinations(range(count), size)]
    members = torch.tensor(
        [[item in chosen for item in range(count)] for chosen in subsets], device=scores.device
    )
    sizes = members.sum(-1)
    log_weight = scores @ (members / sizes.unsqueeze(-1)).to(scores.dtype).T + log_delta[sizes - 1]
    values = scores.new_zeros(scores.shape[0])
    for tied, left in _groups(ranks):
        size = tied.sum(-1)
        if (size > most).any():
            raise ValueError(
                f"a ranking ties {int(size.max())} completions, and log_tie speaks of ties of up to {most}; "
                "give one more entry per further completion"
            )
        possible = ~(members & ~left.unsqueeze(1)).any(-1)
        occurred = (members == tied.unsqueeze(1)).all(-1)
        stage = _log_sum(log_weight, possible) - _log_sum(log_weight, occurred)
        values = values + torch.where(size > 0, stage, 0.0)
    return values


def dpo(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    *,
    beta: float,
    loss: DpoLoss | str = "sigmoid",
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Direct preference optimisation, one value per pair, of

        h = [log π(y⁺|x) − log π(y⁻|x)] − [log π_ref(y⁺|x) − log π_ref(y⁻|x)]

    Arguments: log-probabilities summed over the answer's tokens, (pairs,). ε `label_smoothing`
    is the probability that a label is the wrong way round.

    - sigmoid: −log σ(βh). Rafailov et al. 2023, equation 7
    - ipo: (h − 1/(2β))². Azar et al. 2023, equation 17
    - hinge: max(0, 1 − βh). Zhao et al. 2023
    - robust: [−(1 − ε) log σ(βh) + ε log σ(−βh)] / (1 − 2ε), which is unbiased under flipped
      labels. Chowdhury et al. 2024, equation 9

    The first three become (1 − ε) ℓ(h) + ε ℓ(−h) under smoothing; for sigmoid that is the
    conservative loss of Mitchell 2023.
    """
    _require_smoothing(label_smoothing)
    if beta <= 0:
        raise ValueError(f"beta {beta} must be positive")
    policy = _at_least_float32(policy_chosen) - _at_least_float32(policy_rejected)
    h = policy - (_at_least_float32(ref_chosen) - _at_least_float32(ref_rejected))
    stated, flipped = _dpo_term(h, beta, loss), _dpo_term(-h, beta, loss)
    if loss == "robust":
        values = ((1 - label_smoothing) * stated - label_smoothing * flipped) / (1 - 2 * label_smoothing)
    else:
        values = (1 - label_smoothing) * stated + label_smoothing * flipped
    return _reduce(values, None, reduction)


def register_dpo_loss(name: str, term: DpoTerm) -> None:
    """Add a loss on the margin of a pair under a name that `dpo` takes.

    term: (h (N,), β) → ℓ(h) (N,), the loss where the label says that the chosen response is better.
    """
    _DPO_TERMS[name] = term


def _dpo_term(h: Tensor, beta: float, loss: str) -> Tensor:
    """Return ℓ(h) of one label."""
    if loss not in _DPO_TERMS:
        raise ValueError(f"loss {loss!r} is not known; it is one of {', '.join(_DPO_TERMS)}")
    return _DPO_TERMS[loss](h, beta)


def dpo_plackett_luce(
    policy: Tensor,
    ref: Tensor,
    ranks: Tensor,
    *,
    beta: float,
    ties: Ties = "exact",
    log_tie: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """DPO on whole rankings: Plackett-Luce over the implied rewards β (log π − log π_ref).

    policy, ref: log-probabilities of the answers, (batch, K). ranks, partial ones too, ties, log_tie: as in
    `plackett_luce`. Rafailov et al. 2023, appendix A.3, equation 20.
    """
    rewards = beta * (_at_least_float32(policy) - _at_least_float32(ref))
    return plackett_luce(rewards, ranks, ties=ties, log_tie=log_tie, weight=weight, reduction=reduction)


def kto(
    policy: Tensor,
    ref: Tensor,
    desirable: Tensor,
    kl: Tensor,
    *,
    beta: float,
    weight_desirable: float = 1.0,
    weight_undesirable: float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """KTO: each answer alone is good or bad, against the policy's drift as point of reference.

    With r = log π − log π_ref, the loss is λ_D (1 − σ(β(r − z))) of a desirable answer and
    λ_U (1 − σ(β(z − r))) of an undesirable one. policy, ref: (batch,). desirable: (batch,)
    booleans. kl: z, a scalar estimate of KL(π ‖ π_ref) from unrelated answers; it takes no
    gradient and counts as 0 when the estimate is negative. Ethayarajh et al. 2024, equation 8.
    """
    ratio = _at_least_float32(policy) - _at_least_float32(ref)
    reference = kl.detach().clamp(min=0)
    gain = weight_desirable * (1 - torch.sigmoid(beta * (ratio - reference)))
    cost = weight_undesirable * (1 - torch.sigmoid(beta * (reference - ratio)))
    return _reduce(torch.where(desirable.bool(), gain, cost), None, reduction)
