"""Losses on preferences and on samples: pure functions on tensors, in float32 at least."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from training.rlhf.kl import estimate

# ── Losses on preferences: pure functions on tensors, in float32 at least ──
#
# Every function returns the mean over its rows, or one value per row with `reduction="none"`. Where rows
# have weights the mean is Σ w·l / Σ w: weight 2 equals the row twice, weight 0 the row left out; with
# `reduction="none"` each row's value is w·l.

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


def simpo(
    chosen: Tensor,
    rejected: Tensor,
    *,
    beta: float,
    margin: float = 0.0,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """SimPO: −log σ(β (l⁺ − l⁻) − γ), one value per pair, without a reference model.

    chosen l⁺, rejected l⁻: log-probabilities per token of the answers, their means, (pairs,). margin: γ, what
    the better answer must lead by. `label_smoothing` as in `dpo`. Meng et al. 2024, equation 6.
    """
    if beta <= 0:
        raise ValueError(f"beta {beta} must be positive")
    lead = beta * (_at_least_float32(chosen) - _at_least_float32(rejected))
    return bradley_terry(
        lead,
        torch.zeros_like(lead),
        margin=margin,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )


def odds_ratio(chosen: Tensor, rejected: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """ORPO's term on pairs: −log σ(log odds(l⁺) − log odds(l⁻)), odds p / (1 − p) of p = e^l, one per pair.

    chosen l⁺, rejected l⁻: log-probabilities per token of the answers, their means, (pairs,), below 0. ORPO
    adds λ times this to −l⁺, see `PreferenceSettings`. Hong et al. 2024, equations 4 to 7.
    """
    lead = log_odds(chosen) - log_odds(rejected)
    return _reduce(-F.logsigmoid(lead), None, reduction)


def log_odds(logp: Tensor) -> Tensor:
    """Return log p − log(1 − p) of log-probabilities below 0, of any shape."""
    logp = _at_least_float32(logp)
    # log(1 − e^l) without cancellation near l = 0, and finite at l = 0, where an answer is certain.
    return logp - (-torch.expm1(logp.clamp(max=-torch.finfo(logp.dtype).eps))).log()


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


# ── Losses on samples: policy gradient and value, pure functions on tensors, in float32 at least ──
#
# All tensors are (batch, time) with a mask of the same shape, True on the tokens that the policy drew; what
# lies outside it may hold anything, NaN included, and takes no gradient.
#
# Gradient accumulation: a micro-batch does not know how many tokens or answers its window has. Pass that as
# `window`, and the micro-batches' losses add up to the loss of the whole window.

Aggregate = Literal["token", "sequence", "constant"]
Level = Literal["token", "sequence"]
Surrogate = Literal["clipped", "cispo"]

# e^20 is beyond any clip; without a bound a ratio of ∞ meets an advantage of 0 and gives NaN.
_MOST_LOG_RATIO = 20.0


def policy_gradient(
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    surrogate: Surrogate = "clipped",
    level: Level = "token",
    aggregate: Aggregate = "token",
    constant: float | None = None,
    weight: Tensor | None = None,
    window: float | None = None,
    reduction: Literal["mean", "none"] = "mean",
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped policy gradient: −min(ρ A, clip(ρ, 1 − clip_low, 1 + clip_high) A) per token.

    ρ = exp(log π − log π_old), and only π takes a gradient. Returns the loss and `ratio_statistics`.

    level="sequence": ρ is one number per answer, at each of its tokens: exp of the mean of log π − log π_old
    over the answer. With aggregate "sequence" that is GSPO, Zheng et al. 2025, equations 5 to 7.

    surrogate="cispo": −clip(ρ, 1 − clip_low, 1 + clip_high) A log π per token, with ρ as a weight that takes
    no gradient: tokens whose ratio is cut still teach. CISPO, Chen et al. 2025 (MiniMax-M1), equations 4
    and 5, which leave the lower end open: clip_low 1 or more.

    logp, old_logp: log-probabilities of the drawn tokens under the sampler's temperature and
    filters. advantages: (batch, time), or (batch,) or (batch, 1) with one per answer. weight: (batch, time),
    or (batch,): what `importance_weights` gives for stale rollouts.

    With both clips infinite and π = π_old it is REINFORCE; equal clips are PPO's; a higher
    `clip_high` leaves unlikely tokens more room to grow (DAPO's "clip higher").

    - token: mean over all tokens, long answers weigh more. DAPO, Yu et al. 2025
    - sequence: mean over each answer's tokens, then over answers that have any. GRPO, Shao et al. 2024
    - constant: sum over each answer's tokens / `constant` (the longest answer allowed), then
      the mean over answers: no length is favoured. Dr. GRPO, Liu et al. 2025

    window: what to divide by in place of this batch's own count: tokens with "token", answers
    with the others. reduction="none": (batch, time), not aggregated. Schulman et al. 2017, equation 7.
    """
    if clip_low < 0 or clip_high < 0:
        raise ValueError(f"clip_low {clip_low} and clip_high {clip_high} must be at least 0")
    valid, logp, old_logp = _prepared(mask, logp, old_logp.detach())
    _, advantages = _prepared(mask, _per_token(advantages, valid).detach())
    log_ratio = logp - old_logp
    if level == "sequence":
        log_ratio = log_ratio.sum(-1, keepdim=True) / valid.sum(-1, keepdim=True).clamp(min=1)
        log_ratio = torch.where(valid, log_ratio, 0.0)
    elif level != "token":
        raise ValueError(f"level {level!r} is not known; it is 'token' or 'sequence'")
    ratio = log_ratio.clamp(-_MOST_LOG_RATIO, _MOST_LOG_RATIO).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    if surrogate == "clipped":
        free, bound = ratio * advantages, clipped * advantages
        values, is_cut = -torch.minimum(free, bound), bound < free
    elif surrogate == "cispo":
        values, is_cut = -clipped.detach() * advantages * logp, clipped != ratio
    else:
        raise ValueError(f"surrogate {surrogate!r} is not known; it is 'clipped' or 'cispo'")
    if weight is not None:
        values = values * _prepared(mask, _per_token(weight, valid).detach())[1]
    statistics = ratio_statistics(logp, old_logp, valid)
    if level == "sequence":
        of_answers = ratio_statistics(log_ratio, torch.zeros_like(log_ratio), valid)
        statistics |= {name: of_answers[name] for name in ("ratio_mean", "ratio_min", "ratio_max")}
    statistics["clip_fraction"] = _mean(is_cut, valid).detach()
    statistics["clip_fraction_low"] = _mean(is_cut & (ratio < 1), valid).detach()
    if reduction == "none":
        return values, statistics
    if reduction != "mean":
        raise ValueError(f"reduction {reduction!r} is not known; it is 'mean' or 'none'")
    return aggregated(values, valid, aggregate, constant=constant, window=window), statistics


def aggregated(
    values: Tensor,
    valid: Tensor,
    aggregate: Aggregate,
    *,
    constant: float | None = None,
    window: float | None = None,
) -> Tensor:
    """Return one loss from the losses of tokens, as `policy_gradient` says it.

    values: (batch, time), 0 outside `valid`, a bool mask of that shape.
    """
    if (constant is not None) != (aggregate == "constant"):
        raise ValueError("constant goes with aggregate='constant', and only with it")
    if aggregate == "token":
        return values.sum() / _divisor(valid.sum(), window)
    if aggregate == "sequence":
        lengths = valid.sum(-1)
        return (values.sum(-1) / lengths.clamp(min=1)).sum() / _divisor((lengths > 0).sum(), window)
    if constant is not None:
        if constant <= 0:
            raise ValueError(f"constant {constant} must be positive")
        return values.sum() / constant / (valid.shape[0] if window is None else window)
    raise ValueError(f"aggregate {aggregate!r} is not known; it is one of token, sequence, constant")


def ratio_statistics(logp: Tensor, old_logp: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Return statistics of ρ = π / π_old over the mask: scalars without gradient.

    ratio_mean, ratio_min, ratio_max, and `approximate_kl`, the k3 estimate of KL(π_old ‖ π)
    that early stopping looks at. An empty mask gives 1, 1, 1 and 0.
    """
    valid, logp, old_logp = _prepared(mask, logp.detach(), old_logp.detach())
    ratio = (logp - old_logp).clamp(-_MOST_LOG_RATIO, _MOST_LOG_RATIO).exp()
    none = ~valid.any()
    return {
        "ratio_mean": torch.where(none, 1.0, _mean(ratio, valid)),
        # Outside the mask both log-probabilities are 0 and the ratio 1, which may be neither extreme.
        "ratio_min": torch.where(none, 1.0, ratio.masked_fill(~valid, torch.inf).amin()),
        "ratio_max": torch.where(none, 1.0, ratio.masked_fill(~valid, -torch.inf).amax()),
        "approximate_kl": _mean(estimate(old_logp, logp, "k3"), valid),
    }


def value(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    clip: float | None,
    window: float | None = None,
    reduction: Literal["mean", "none"] = "mean",
) -> Tensor:
    """Clipped value loss: ½ max((V − R)², (V_clip − R)²), V_clip within `clip` of V_old.

    The larger of the two, so that a value which ran off is pulled back but not rewarded for
    running further. values, old_values, returns, mask: (batch, time). Returns the mean over the
    mask; `clip=None` does not clip; `window` is the number of tokens to divide by instead.
    Baselines' ppo2; Huang et al. 2022, detail 9.
    """
    valid, values, old_values, returns = _prepared(mask, values, old_values.detach(), returns.detach())
    error = (values - returns).square()
    if clip is not None:
        if clip < 0:
            raise ValueError(f"clip {clip} must be at least 0, or None")
        clipped = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (clipped - returns).square())
    if reduction == "none":
        return error / 2
    if reduction != "mean":
        raise ValueError(f"reduction {reduction!r} is not known; it is 'mean' or 'none'")
    return error.sum() / 2 / _divisor(valid.sum(), window)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """1 − Var(R − V) / Var(R) over the mask: 1 is a perfect value head, 0 no better than a constant.

    values, returns, mask: (batch, time). A scalar without gradient; NaN where the returns do not vary.
    """
    valid, values, returns = _prepared(mask, values.detach(), returns.detach())

    def variance(x: Tensor) -> Tensor:
        return _mean((x - _mean(x, valid)).square(), valid)

    spread = variance(returns)
    return torch.where(spread > 0, 1 - variance(returns - values) / spread, torch.nan)


def importance_weights(
    logp: Tensor, behaviour_logp: Tensor, mask: Tensor, *, truncate: float, level: Level = "token"
) -> Tensor:
    """Truncated importance weights min(π_old / μ, truncate), for rollouts that μ ≠ π_old drew.

    μ is whoever sampled: an older policy, or an engine that rounds differently. logp: log π_old
    as the trainer computes it before the first inner epoch; behaviour_logp: log μ as recorded;
    both (batch, time). level="sequence": one weight per answer, of the product over its tokens,
    at each of its tokens. Returns (batch, time), zeros outside the mask, without gradient.
    Ionides 2008; Yao et al. 2025 (truncated importance sampling).
    """
    if truncate <= 0:
        raise ValueError(f"truncate {truncate} must be positive")
    valid, logp, behaviour_logp = _prepared(mask, logp.detach(), behaviour_logp.detach())
    log_ratio = logp - behaviour_logp
    if level == "sequence":
        log_ratio = log_ratio.sum(-1, keepdim=True).expand_as(log_ratio)
    elif level != "token":
        raise ValueError(f"level {level!r} is not known; it is 'token' or 'sequence'")
    return torch.where(valid, log_ratio.exp().clamp(max=truncate), 0.0)


def entropy(logits: Tensor) -> Tensor:
    """Entropy −Σ π log π of each position, in nats: (…, vocabulary) -> (…).

    A token with logit −∞ (filtered away) adds nothing, to the value and to the gradient.
    """
    logp = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    return -(logp.exp() * logp.masked_fill(logp == -torch.inf, 0.0)).sum(-1)


def _prepared(mask: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    """Return the mask as booleans, then the values in float32 at least with zeros outside it."""
    valid = mask.bool()
    for x in values:
        if x.shape != valid.shape:
            raise ValueError(f"mask {tuple(valid.shape)} and values {tuple(x.shape)} must have one shape")
    wide = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in values]
    # Before any arithmetic: a NaN that is only multiplied by 0 later still spoils the gradient.
    return valid, *(torch.where(valid, x, torch.zeros_like(x)) for x in wide)


def _per_token(values: Tensor, valid: Tensor) -> Tensor:
    """Repeat one value per completion for each of its tokens."""
    if values.ndim == valid.ndim - 1:
        values = values.unsqueeze(-1)
    return values.expand_as(valid) if values.shape == (*valid.shape[:-1], 1) else values


def _mean(values: Tensor, valid: Tensor) -> Tensor:
    return torch.where(valid, values, 0.0).sum() / valid.sum().clamp(min=1)


def _divisor(count: Tensor, window: float | None) -> Tensor | float:
    """Return the divisor of a sum. A batch without a token gives a loss of 0, not NaN."""
    return count.clamp(min=1) if window is None else window


# ── Initial log odds of ties: the maximum-likelihood value on the training data ──

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
