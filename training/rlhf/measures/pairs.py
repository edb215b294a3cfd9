"""Figures on decided pairs, of reward models and implicit rewards of policies, and predictors to beat."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from annotation.agreement.intervals import wilson_interval
from training.rlhf.measures.calibration import (
    ClusteredMean,
    cluster_bootstrap,
    expected_calibration_error,
    favourite_outcomes,
    fit_temperature,
    length_bias,
    pair_probabilities,
    reliability_diagram,
)
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import Batch

# ── Predictors to beat on held-out pairs, and log-loss at a fitted temperature ──────────
#
# Constant: every pair one half, log-loss log 2. Length: p(chosen) = σ(b · log(length⁺ / length⁻)), one
# number b fitted to the training pairs. All functions take tensors on any device and work in float64.

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


# ── Figures on decided pairs, the same for reward models and for the implicit rewards of a policy ──
#
# Every judgment counts once, however many pairs its ranking decides: a pair's share is its judgment's
# weight of 1 divided by its pairs.

FEW_PROMPTS = 20
"""With fewer the bootstrap over prompts is too narrow (see `cluster_bootstrap`)."""


def name_hash(name: str) -> int:
    """Return a number for a name, the same in every process: judgments of one prompt have one."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


@torch.no_grad()
def pair_observations(batch: Batch, examples: Sequence[Example], rewards: Tensor) -> dict[str, Tensor]:
    """Return the observations for `pair_figures`, (P,) each. rewards: (R,)."""
    chosen, rejected = rewards[batch.winners].detach(), rewards[batch.losers].detach()
    pairs = torch.bincount(batch.pair_example, minlength=batch.examples)
    lengths = batch.answer_tokens.clamp(min=1)
    prompts = torch.tensor([name_hash(example.prompt) for example in examples], device=rewards.device)
    return {
        "chosen": chosen,
        "rejected": rejected,
        "share": 1 / pairs[batch.pair_example].to(chosen.dtype),
        "longer": (lengths[batch.winners] - lengths[batch.losers]).to(chosen.dtype),
        "length_ratio": (lengths[batch.winners] / lengths[batch.losers]).log().to(chosen.dtype),
        "prompt": prompts[batch.pair_example],
    }


@torch.no_grad()
def ensemble_observations(batch: Batch, rewards: Tensor) -> dict[str, Tensor]:
    """Of every pair, how far an ensemble's members disagree on it, (P,). rewards: (R, members)."""
    margins = rewards[batch.winners] - rewards[batch.losers]
    deviations = margins - margins.mean(-1, keepdim=True)
    return {"spread": (deviations.square().sum(-1) / (margins.shape[1] - 1)).sqrt()}


def pair_figures(observed: Mapping[str, Tensor], *, held_out: bool) -> dict[str, float]:
    """Means over judgments; nothing where there is no pair.

    `accuracy`: share of pairs ordered right, ½ where both are equal. `margin`: r⁺ − r⁻. `log_loss`:
    −log σ(r⁺ − r⁻). `reward_chosen`, `reward_rejected`, `reward_mean`. Where they were observed: `spread`,
    see `ensemble_observations`; `own_accuracy` and `own_log_loss`, by the annotators' own rewards.

    With `held_out` also: `decided`, judgments with a pair; 95 % intervals of accuracy and log-loss over
    prompts (`…_low`, `…_high`); `constant_log_loss`, of one half for every pair; `temperature`, by which
    margins would have to be divided to be likeliest; with enough prompts `scaled_log_loss`, of margins
    divided by a temperature fitted to other prompts; `calibration_error` of the margins as they are;
    `longer_scored_higher` and `longer_chosen`, of pairs whose lengths differ. A figure that does not exist,
    as a temperature where the margins are no better than coins, is left out.
    """
    share = observed["share"].double()
    if not len(share):
        return {}
    chosen, rejected = observed["chosen"].double(), observed["rejected"].double()
    margin = chosen - rejected
    values = {
        "accuracy": (margin.sign() + 1) / 2,
        "margin": margin,
        "log_loss": -F.logsigmoid(margin),
        "reward_chosen": chosen,
        "reward_rejected": rejected,
        "reward_mean": (chosen + rejected) / 2,
    }
    if "spread" in observed:
        values["spread"] = observed["spread"].double()
    figures = {name: float((share * value).sum() / share.sum()) for name, value in values.items()}
    figures |= _own_figures(observed)
    if held_out and margin.isfinite().all():
        # In an order that passes and processes do not decide: the resamples draw prompts by their places.
        order = observed["prompt"].argsort(stable=True)
        prompts = observed["prompt"][order].tolist()
        right, surprise = (
            cluster_bootstrap(values[name][order], prompts, weight=share[order])
            for name in ("accuracy", "log_loss")
        )
        figures["decided"] = float(round(float(share.sum())))
        figures["accuracy_low"], figures["accuracy_high"] = accuracy_interval(right, figures["decided"])
        if surprise.low is not None and surprise.high is not None:
            figures |= {"log_loss_low": surprise.low, "log_loss_high": surprise.high}
        figures["constant_log_loss"] = CONSTANT_LOG_LOSS
        scaled = scaled_log_loss(margin[order], share[order], prompts)
        figures |= {} if scaled is None else {"scaled_log_loss": scaled}
        figures |= _calibration(margin, share, observed["longer"])
    return figures


def accuracy_interval(accuracy: ClusteredMean, decided: float) -> tuple[float, float]:
    """Return the wider of the bootstrap's interval over prompts and Wilson's.

    The bootstrap of a model that is right everywhere knows no other outcome. Wilson's trials are the
    judgments; of few prompts, which the bootstrap serves badly, the prompts.
    """
    few = accuracy.clusters < FEW_PROMPTS
    # Rounding may put a mean of ones above 1.
    share = min(1.0, max(0.0, accuracy.mean))
    trials = accuracy.clusters if few else decided
    low, high = wilson_interval(share * trials, trials)
    if accuracy.low is None or accuracy.high is None:
        return low, high
    return min(low, accuracy.low), max(high, accuracy.high)


def _own_figures(observed: Mapping[str, Tensor]) -> dict[str, float]:
    margin = observed.get("own_margin", torch.empty(0)).double()
    known = ~margin.isnan()
    if not known.any():
        return {}
    margin, share = margin[known], observed["share"].double()[known]
    right, surprise = (margin.sign() + 1) / 2, -F.logsigmoid(margin)
    return {
        "own_accuracy": float((share * right).sum() / share.sum()),
        "own_log_loss": float((share * surprise).sum() / share.sum()),
    }


def _calibration(margin: Tensor, share: Tensor, longer: Tensor) -> dict[str, float]:
    temperature, length = fit_temperature(margin, share), length_bias(margin, longer)
    figures = {
        "temperature": temperature,
        "calibration_error": expected_calibration_error(*favourite_outcomes(margin)),
        "longer_scored_higher": length.longer_scored_higher,
        "longer_chosen": length.longer_chosen,
    }
    return {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}


def pair_details(observed: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the details of pairs for `EvaluationReport`; empty without pairs.

    A diagram takes each pair once, and the calibrated one the temperature of the very pairs it shows, one
    number fitted on all of them.
    """
    margin = observed["chosen"].double() - observed["rejected"].double()
    if not len(margin) or not margin.isfinite().all():
        return {}
    temperature = fit_temperature(margin, observed["share"].double())
    return {
        "temperature": temperature,
        "reliability": _bins(margin, 1.0),
        "reliability_calibrated": _bins(margin, temperature),
        "length": dataclasses.asdict(length_bias(margin, observed["longer"])),
    }


def _bins(margin: Tensor, temperature: float) -> list[dict[str, Any]]:
    return [
        dataclasses.asdict(row)
        for row in reliability_diagram(*favourite_outcomes(margin, temperature), bins=20)
    ]


# ── Bootstrap resamples of judgments, one for each head of an ensemble ──

_RESAMPLE_STREAM = 2
"""Keeps the resamples apart from all else that is drawn from the run's seed."""


@functools.lru_cache(maxsize=1_000_000)
def times_drawn(judgment: str, head: int, seed: int) -> int:
    """Return a judgment's count in a head's resample: Poisson with mean 1, the bootstrap of a stream.

    It follows from the seed, the head and the judgment's id alone, so that nobody has to hold the whole
    snapshot, and a resumed run draws the same (Oza & Russell 2001).
    """
    generator = np.random.default_rng([seed, _RESAMPLE_STREAM, head, name_hash(judgment)])
    return int(generator.poisson(1.0))


def resample(judgments: list[str], *, heads: int, seed: int) -> Tensor:
    """(heads, judgments) how often each head learns from each; float32."""
    return torch.tensor(
        [[float(times_drawn(judgment, head, seed)) for judgment in judgments] for head in range(heads)]
    )
