"""Calibration of a reward model's margins as probabilities, and its length bias.

A margin is r(chosen) − r(rejected): what the model gives the answer that people chose above the other. All
functions take tensors on any device, arrays or plain numbers and work in float64.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor

from annotation.agreement.coefficients import kappa_of_tables
from annotation.agreement.intervals import SEED, percentile_interval, ratio, wilson_interval

Floats = NDArray[np.float64]
Values = Tensor | NDArray[np.floating] | NDArray[np.integer] | NDArray[np.bool_] | Sequence[float]

_BISECTIONS = 200


def doubles(values: Values, name: str) -> Floats:
    """Values as a float64 array (N,); `ValueError` for another shape and for what is not finite."""
    if isinstance(values, Tensor):
        # NumPy knows no bfloat16.
        values = values.detach().to("cpu", torch.float64).numpy()
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} must have one dimension, not the shape {array.shape}")
    if not np.isfinite(array).all():
        place = int(np.flatnonzero(~np.isfinite(array))[0])
        raise ValueError(f"{name}[{place}] is {array[place]}; all must be finite")
    return array


def alike(*named: tuple[str, Values]) -> list[Floats]:
    """Several arrays of one length, at least 1, by `doubles`."""
    arrays = [doubles(values, name) for name, values in named]
    if len({len(values) for values in arrays}) > 1:
        lengths = ", ".join(f"{name} {len(values)}" for (name, _), values in zip(named, arrays, strict=True))
        raise ValueError(f"all must have one length, not {lengths}")
    if not len(arrays[0]):
        raise ValueError(f"{named[0][0]} is empty: there is nothing to measure")
    return arrays


def fit_temperature(margins: Values, weight: Values | None = None) -> float:
    """The τ > 0 that minimises the mean of −log σ(margin / τ) over held-out pairs, each with its weight.

    margins, weight: (pairs,). The loss is convex in 1/τ, so the minimum is the only one; it is found to
    float64's precision. Above 1 the model was too sure, below 1 not sure enough. There is no minimum at a
    finite τ > 0 where

    - no pair of positive weight is wrong (some right): the loss falls as τ → 0, and 0.0 is returned; - the
    weighted mean margin is not above 0: it falls as τ → ∞, where every pair is a coin, and `math.inf` is
    returned: these rewards say nothing of held-out pairs, or the opposite; - all margins are 0: no τ
    changes anything, and 1.0 is returned.

    `pair_probabilities` takes all of these. Guo et al. 2017 (temperature scaling). Raises `ValueError` for no
    pairs, values that are not finite, and weights that are negative or all 0.
    """
    array, weights = alike(
        ("margins", margins), ("weight", np.ones(len(margins)) if weight is None else weight)
    )
    if (weights < 0).any() or not weights.any():
        raise ValueError("weight must not be negative, and some weight must be above 0")
    array, weights = array[weights > 0], weights[weights > 0]
    largest = float(np.abs(array).max())
    if largest == 0:
        return 1.0
    scaled = array / largest
    if not (scaled < 0).any():
        return 0.0
    if float(weights @ scaled) <= 0:
        return math.inf

    def falls(sharpness: float) -> bool:
        """Return whether the loss still falls at 1/τ = sharpness: −Σ w m σ(−m / τ) < 0."""
        return float(weights @ (scaled * expit(-sharpness * scaled))) > 0

    low, high = 0.0, 1.0
    while falls(high) and math.isfinite(high):
        low, high = high, 2 * high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if falls(middle) else (low, middle)
    return largest / high


def pair_probabilities(margins: Values, temperature: float = 1.0) -> Floats:
    """σ(margin / τ), (pairs,): how sure the model is that the chosen answer is the better one.

    Takes the limits that `fit_temperature` may return: at τ = 0 a pair is 0, ½ or 1 by its sign, at ∞ all
    are ½.
    """
    array = doubles(margins, "margins")
    if math.isnan(temperature) or temperature < 0:
        raise ValueError(f"the temperature {temperature} must not be negative")
    return (np.sign(array) + 1) / 2 if temperature == 0 else expit(array / temperature)


def favourite_outcomes(margins: Values, temperature: float = 1.0) -> tuple[Floats, Floats]:
    """Pairs as `reliability_diagram` takes them: p = σ(|margin| / τ), and whether the favourite was chosen.

    (pairs,) each. By the margin alone every outcome would be "chosen", and a diagram of that could only
    rise; seen from the model's favourite, p lies in [½, 1] and the outcome is 1, 0, or ½ where the model
    had no favourite.
    """
    array = doubles(margins, "margins")
    return pair_probabilities(np.abs(array), temperature), (np.sign(array) + 1) / 2


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """The predictions within [low, high), the last bin's high included."""

    low: float
    high: float
    count: int
    mean_probability: float
    observed: float
    """Mean outcome: the share in which it happened."""
    observed_low: float
    """Lower end of the share's 95 % Wilson interval."""
    observed_high: float


def reliability_diagram(probabilities: Values, outcomes: Values, bins: int = 10) -> list[ReliabilityBin]:
    """Return observed and predicted frequencies in `bins` equal-width bins over [0, 1], empty ones left out.

    probabilities: (N,) in [0, 1]. outcomes: (N,), 1 where it happened, 0 where not, ½ for a tie. The
    predictions are taken as independent; where several stand on one prompt the intervals are too narrow:
    `cluster_bootstrap`.
    """
    predicted, happened = alike(("probabilities", probabilities), ("outcomes", outcomes))
    for name, values in (("probabilities", predicted), ("outcomes", happened)):
        if ((values < 0) | (values > 1)).any():
            raise ValueError(f"{name} must lie in [0, 1]")
    if bins < 1:
        raise ValueError(f"bins {bins} must be at least 1")
    edges = np.arange(bins + 1) / bins
    # By the edges themselves, not by ⌊p · bins⌋, which rounds: 0.29 · 100 is below 29.
    places = np.clip(np.searchsorted(edges, predicted, side="right") - 1, 0, bins - 1)
    diagram = []
    for place in np.unique(places):
        inside = places == place
        count, observed = int(inside.sum()), float(happened[inside].mean())
        diagram.append(
            ReliabilityBin(
                float(edges[place]),
                float(edges[place + 1]),
                count,
                float(predicted[inside].mean()),
                observed,
                *wilson_interval(observed * count, count),
            )
        )
    return diagram


def expected_calibration_error(probabilities: Values, outcomes: Values, bins: int = 10) -> float:
    """Σ n_b/N · |observed_b − mean probability_b| over the bins of `reliability_diagram`. Naeini et al. 2015.

    It is above 0 for a perfect model too, the more so the fewer predictions a bin holds: compare only
    figures of one N and one number of bins.
    """
    diagram = reliability_diagram(probabilities, outcomes, bins)
    total = sum(row.count for row in diagram)
    return math.fsum(row.count / total * abs(row.observed - row.mean_probability) for row in diagram)


@dataclass(frozen=True, slots=True)
class LengthBias:
    """Preference for longer completions by model and people, over pairs whose lengths differ."""

    pairs: int
    equal_length: int
    """Pairs left out because neither answer is longer."""
    longer_scored_higher: float | None
    """Share of pairs whose longer answer the model scores higher; equal scores count half."""
    longer_chosen: float | None
    """Share of pairs whose longer answer people chose; a model above it leans on length more than they."""
    point_biserial: float | None
    """Correlation of the score difference with which answer is the longer, −1 to 1."""
    spearman: float | None
    """Rank correlation of the score difference with the length difference, −1 to 1."""


def length_bias(margins: Values, length_differences: Values) -> LengthBias:
    """Compare scores with lengths; both are of the chosen answer less the rejected one, (pairs,).

    The correlations take every pair in both orders, (m, d) and (−m, −d): which answer comes first means
    nothing, so both means are 0 and the figures are the same whichever way round a pair is given. Figures
    that do not exist (no pair of different lengths; for correlations, no pair of different scores) are
    None.
    """
    scores, lengths = alike(("margins", margins), ("length_differences", length_differences))
    differ = lengths != 0
    scores, lengths = scores[differ], lengths[differ]
    equal = int((~differ).sum())
    if not len(scores):
        return LengthBias(0, equal, None, None, None, None)
    towards_longer = scores * np.sign(lengths)
    has_scores = bool(scores.any())
    return LengthBias(
        pairs=len(scores),
        equal_length=equal,
        longer_scored_higher=float((np.sign(towards_longer) + 1).mean() / 2),
        longer_chosen=float((lengths > 0).mean()),
        point_biserial=cosine(scores, np.sign(lengths)) if has_scores else None,
        spearman=cosine(_signed_ranks(scores), _signed_ranks(lengths)) if has_scores else None,
    )


@dataclass(frozen=True, slots=True)
class ClusteredMean:
    """A mean with its 95 % interval; None for the ends where there is one cluster only."""

    mean: float
    low: float | None
    high: float | None
    clusters: int


def cluster_bootstrap(
    values: Values,
    clusters: Sequence[Hashable],
    *,
    weight: Values | None = None,
    seed: int = SEED,
) -> ClusteredMean:
    """Return the mean Σ w·v / Σ w of values that hang together in clusters, such as all pairs on one prompt.

    values, weight: (N,); clusters: N names of the cluster of each. The interval is that of
    `percentile_interval` over clusters. With few of them (under about 20) it is too narrow.
    """
    array, weights = alike(("values", values), ("weight", np.ones(len(values)) if weight is None else weight))
    if len(clusters) != len(array):
        raise ValueError(f"{len(array)} values have {len(clusters)} clusters; each needs one")
    if (weights < 0).any() or not weights.any():
        raise ValueError("weight must not be negative, and some weight must be above 0")
    places: dict[Hashable, int] = {}
    cluster_of = np.array([places.setdefault(name, len(places)) for name in clusters])
    weighted = np.bincount(cluster_of, weights * array)
    totals = np.bincount(cluster_of, weights)
    # A cluster without weight is none.
    weighted, totals = weighted[totals > 0], totals[totals > 0]
    mean = float(weighted.sum() / totals.sum())
    low, high = percentile_interval(np.stack((weighted, totals), axis=1), ratio, seed=seed)
    return ClusteredMean(mean, low, high, len(totals))


def cosine(left: Floats, right: Floats) -> float:
    """Return the correlation of two columns whose means are 0."""
    left, right = left / np.abs(left).max(), right / np.abs(right).max()
    return float(np.clip(left @ right / math.sqrt((left @ left) * (right @ right)), -1, 1))


def _signed_ranks(values: Floats) -> Floats:
    """Mid-ranks of the values among themselves and their negatives, less the mean rank: odd, and 0 for 0."""
    both = np.sort(np.concatenate([values, -values]))
    below, up_to = np.searchsorted(both, values, side="left"), np.searchsorted(both, values, side="right")
    ranks: Floats = (below + up_to - len(both)) / 2.0
    return ranks


# ── Figures for a head that says of each segment or answer whether it has an error of one category ──
#
# scores: (N,), the higher the likelier; logits do. labels: (N,), 1 where people marked it, else 0. All
# functions take tensors on any device, arrays or plain numbers and work in float64. A threshold t marks
# what scores t or more, so equal scores always stand on the same side.


@dataclass(frozen=True, slots=True)
class PrecisionRecallCurve:
    """One point for each distinct score, from the lowest (all are marked, recall 1) to the highest."""

    thresholds: Floats
    precision: Floats
    """Share of the marked that are errors."""
    recall: Floats
    """Share of the errors that are marked."""


def precision_recall_curve(scores: Values, labels: Values) -> PrecisionRecallCurve:
    """Precision and recall at every distinct score. Raises `ValueError` where no label is 1."""
    array, marked = _scored(scores, labels)
    if not marked.any():
        raise ValueError("no label is 1: a category without examples has no precision and recall")
    thresholds, places = np.unique(array, return_inverse=True)
    errors = _from_top(np.bincount(places, marked).astype(np.float64))
    predicted = _from_top(np.bincount(places).astype(np.float64))
    return PrecisionRecallCurve(thresholds, errors / predicted, errors / marked.sum())


def f1_at(scores: Values, labels: Values, threshold: float) -> float:
    """F1 = 2 TP / (2 TP + FP + FN) of marking what scores `threshold` or more; 0 where that is 0/0."""
    array, marked = _scored(scores, labels)
    predicted = array >= threshold
    hits = float(marked[predicted].sum())
    total = float(predicted.sum() + marked.sum())
    return 2 * hits / total if total else 0.0


def average_precision(scores: Values, labels: Values) -> float:
    """Σ (R_n − R_{n−1}) P_n from the highest threshold down, uninterpolated; equal scores are one step.

    The share of labels that are 1 is what scores without meaning reach. Raises `ValueError` where no label
    is 1.
    """
    curve = precision_recall_curve(scores, labels)
    steps = curve.recall - np.append(curve.recall[1:], 0.0)
    return float(steps @ curve.precision)


def roc_auc(scores: Values, labels: Values) -> float | None:
    """Chance that a random 1 scores higher than a random 0, equal scores counted half (Mann-Whitney U).

    ½ is what scores without meaning reach. None where all labels are the same.
    """
    array, marked = _scored(scores, labels)
    _, places = np.unique(array, return_inverse=True)
    ones, zeros = np.bincount(places, marked), np.bincount(places, 1 - marked)
    pairs = float(ones.sum() * zeros.sum())
    return float(ones @ (zeros.cumsum() - zeros / 2)) / pairs if pairs else None


def cohen_kappa(first: Sequence[Hashable] | Tensor, second: Sequence[Hashable] | Tensor) -> float | None:
    """Return Cohen's κ of two lists of categories.

    first, second: (N,) categories of the same examples, such as what a head marks and what people marked.
    None where both name one and the same category throughout: chance alone would agree.
    """
    left, right = _categories(first), _categories(second)
    if len(left) != len(right):
        raise ValueError(
            f"{len(left)} judgments cannot agree with {len(right)}; both must be of the same examples"
        )
    if not left:
        raise ValueError("there is nothing to agree on")
    place = {category: number for number, category in enumerate(dict.fromkeys([*left, *right]))}
    if len(place) < 2:
        return None
    table = np.zeros((1, len(place), len(place)))
    np.add.at(table[0], ([place[label] for label in left], [place[label] for label in right]), 1)
    return float(kappa_of_tables(table)[0])


def _scored(scores: Values, labels: Values) -> tuple[Floats, Floats]:
    array, marked = alike(("scores", scores), ("labels", labels))
    _require_binary(marked)
    return array, marked


def _require_binary(labels: Floats) -> None:
    if not np.isin(labels, (0, 1)).all():
        raise ValueError("labels must be 0 or 1")


def _from_top(counts: Floats) -> Floats:
    """Sums from each place to the last."""
    sums: Floats = np.cumsum(counts[::-1])[::-1]
    return sums


def _categories(values: Sequence[Hashable] | Tensor) -> list[Hashable]:
    return list(values.tolist()) if isinstance(values, Tensor) else list(values)


# ── Figures on ratings: of predicted values, of chances, and of levels. All take (N,) tensors ──
#
# A figure that does not exist, such as a correlation where all ratings are equal, is left out.


def spearman(left: Values, right: Values) -> float | None:
    """Correlation of the ranks, ties at their mean rank (Spearman 1904); None where one side is constant."""
    from scipy.stats import spearmanr  # takes a second, and few runs have ratings

    first, second = doubles(left, "left"), doubles(right, "right")
    constant = np.ptp(first) == 0 or np.ptp(second) == 0
    return None if constant else float(spearmanr(first, second).statistic)


def figures_of_values(predicted: Tensor, rated: Tensor) -> dict[str, float]:
    """`mean_absolute_error` and `spearman` of predicted ratings."""
    if not len(rated) or not predicted.isfinite().all():
        return {}
    figures = {"mean_absolute_error": float((predicted - rated).abs().mean())}
    if (correlation := spearman(predicted, rated)) is not None:
        figures["spearman"] = correlation
    return figures


def figures_of_levels(
    expected: Tensor, rated: Tensor, hit: Tensor, log_probability: Tensor
) -> dict[str, float]:
    """Those of the expected ratings; `accuracy`, the share whose likeliest level was given; `log_loss`."""
    if not len(rated):
        return {}
    return figures_of_values(expected, rated) | {
        "accuracy": float(hit.mean()),
        "log_loss": float(-log_probability.mean()),
    }


def figures_of_chances(logit: Tensor, happened: Tensor) -> dict[str, float]:
    """`accuracy` (½ where the chance is), `log_loss` and `auc` of chances σ(logit); happened: 0 or 1."""
    if not len(logit) or not logit.isfinite().all():
        return {}
    towards = logit * (2 * happened - 1)
    figures = {
        "accuracy": float(((towards.sign() + 1) / 2).mean()),
        "log_loss": float(-F.logsigmoid(towards).mean()),
    }
    if (area := roc_auc(logit, happened)) is not None:
        figures["auc"] = area
    return figures
