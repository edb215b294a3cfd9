"""Figures of predictions: of categories, values, levels and chances."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from annotation.agreement.coefficients import kappa_of_tables
from training.rlhf.measures.calibration import Floats, Values, alike, doubles

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
