"""Predictors that a reward model has to beat on held-out pairs, and its own log-loss at a fitted temperature.

Constant: every pair one half, log-loss log 2. Length: p(chosen) = σ(b · log(length⁺ / length⁻)), one number
b fitted to the training pairs. All functions take tensors on any device and work in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from training.rlhf.measures.calibration import fit_temperature, pair_probabilities
from training.rlhf.tokens.example import Example

CONSTANT_LOG_LOSS = math.log(2)
LEAST_PROMPTS = 20
"""A temperature is validated from so many held-out prompts with a decided pair on."""
_FOLDS = 10
_BISECTIONS = 200


def length_slope(examples: Sequence[Example]) -> float:
    """Fit the length predictor's b to decided pairs of training examples; 0.0 without lengths that differ.

    Each example counts by its weight, divided over its pairs. Minimised is Σ w · softplus(−b·x) +
    ½ · b² · mean(x²) with x = log(length⁺ / length⁻): the second term, a normal prior worth about one
    judgment, keeps b finite where the longer answer always won.
    """
    ratios, weights = [], []
    for example in examples:
        lengths = [len(answer.ids) - answer.answer_start for answer in example.answers]
        pairs = example.pairs
        if not pairs:
            continue
        ratios += [math.log(lengths[winner] / lengths[loser]) for winner, loser in pairs]
        weights += [example.weight / len(pairs)] * len(pairs)
    x, w = torch.tensor(ratios, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64)
    if not len(x) or not float(w.sum()) or not x.any():
        return 0.0
    scale = float(x.square().mean())
    # At the minimum |b| · scale = |Σ w·x·σ(−b·x)| ≤ Σ w·|x|.
    high = float((w * x.abs()).sum()) / scale
    low = -high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        slope = middle * scale - float((w * x * torch.sigmoid(-middle * x)).sum())
        low, high = (low, middle) if slope > 0 else (middle, high)
    return (low + high) / 2


def length_log_loss(ratios: Tensor, share: Tensor, *, slope: float) -> float:
    """Mean of −log σ(slope · x) over pairs, by share. ratios, the x of `length_slope`, and share: (P,)."""
    share = share.double()
    return float((share * -F.logsigmoid(slope * ratios.double())).sum() / share.sum())


def scaled_log_loss(margin: Tensor, share: Tensor, prompts: Sequence[int]) -> float | None:
    """Mean of −log σ(margin / τ), τ of each tenth of the prompts fitted to the other nine; (P,) each.

    Cross-fitted, because a temperature flatters the pairs that it was fitted to. None with fewer than
    `LEAST_PROMPTS` prompts.
    """
    keys = sorted(set(prompts))
    if len(keys) < LEAST_PROMPTS:
        return None
    fold_by_prompt = {key: place % _FOLDS for place, key in enumerate(keys)}
    folds = torch.tensor([fold_by_prompt[key] for key in prompts])
    margin, share = margin.double().cpu(), share.double().cpu()
    total = 0.0
    for fold in range(_FOLDS):
        here = folds == fold
        temperature = _smoothed_temperature(margin[~here], share[~here])
        chances = torch.as_tensor(pair_probabilities(margin[here], temperature))
        total += float((share[here] * -chances.log()).sum())
    return total / float(share.sum())


def _smoothed_temperature(margin: Tensor, share: Tensor) -> float:
    """Return the likeliest temperature with half a judgment more that was decided the other way (Platt 1999).

    Without it the temperature of pairs that are all right is 0, and one wrong pair elsewhere costs infinity.
    """
    smoothing = 0.5 / (float(share.sum()) + 1)
    both = torch.cat([margin, -margin])
    return fit_temperature(both, torch.cat([share * (1 - smoothing), share * smoothing]))
