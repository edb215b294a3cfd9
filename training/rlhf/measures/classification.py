"""Figures for a head that says of each segment or answer whether it has an error of one category.

scores: (N,), the higher the likelier; logits do. labels: (N,), 1 where people marked it, else 0. All
functions take tensors on any device, arrays or plain numbers and work in float64. A threshold t marks what
scores t or more, so equal scores always stand on the same side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from training.rlhf.measures.calibration import Floats, Values, alike


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
    """κ = (p_o − p_e) / (1 − p_e), p_e = Σ_c p_first(c) p_second(c): agreement beyond chance. Cohen 1960.

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
    count = len(left)
    agreed = sum(label == other for label, other in zip(left, right, strict=True))
    totals = Counter(right)
    by_chance = sum(times * totals[category] for category, times in Counter(left).items())
    # In whole numbers, times N²: 1 − p_e is exactly 0 where it should be.
    return (agreed * count - by_chance) / (count**2 - by_chance) if by_chance < count**2 else None


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
