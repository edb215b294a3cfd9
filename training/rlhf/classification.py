"""Figures for a head that says of each segment or answer whether it has an error of one category.

scores: (N,), the higher the likelier; logits do. labels: (N,), 1 where people marked it, else 0. All
functions take tensors on any device, arrays or plain numbers and work in float64. A threshold t marks what
scores t or more, so equal scores always stand on the same side.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from training.rlhf.calibration import Floats, Values, alike


@dataclass(frozen=True, slots=True)
class PrecisionRecallCurve:
    """One point for each distinct score, from the lowest (all are marked, recall 1) to the highest."""

    thresholds: Floats
    precision: Floats
    """Share of the marked that are errors."""
    recall: Floats
    """Share of the errors that are marked."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A threshold and what it gives on the examples it was chosen on: choose it on training examples."""

    threshold: float
    f1: float
    precision: float
    recall: float


def precision_recall_curve(scores: Values, labels: Values) -> PrecisionRecallCurve:
    """Precision and recall at every distinct score. Raises `ValueError` where no label is 1."""
    found, marked = _scored(scores, labels)
    if not marked.any():
        raise ValueError("no label is 1: a category without examples has no precision and recall")
    thresholds, places = np.unique(found, return_inverse=True)
    errors = _from_top(np.bincount(places, marked).astype(np.float64))
    predicted = _from_top(np.bincount(places).astype(np.float64))
    return PrecisionRecallCurve(thresholds, errors / predicted, errors / marked.sum())


def f1_at(scores: Values, labels: Values, threshold: float) -> float:
    """F1 = 2 TP / (2 TP + FP + FN) of marking what scores `threshold` or more; 0 where that is 0/0."""
    found, marked = _scored(scores, labels)
    predicted = found >= threshold
    hits = float(marked[predicted].sum())
    total = float(predicted.sum() + marked.sum())
    return 2 * hits / total if total else 0.0


def best_threshold(scores: Values, labels: Values) -> Threshold:
    """The threshold with the highest F1; of several the highest, which marks least.

    It lies halfway between the lowest score that is marked and the next below, so that new scores have room
    on both sides. Raises `ValueError` where no label is 1.
    """
    curve = precision_recall_curve(scores, labels)
    total = curve.precision + curve.recall
    f1 = np.divide(2 * curve.precision * curve.recall, total, out=np.zeros_like(total), where=total > 0)
    # Equal F1 may differ in the last bit, by the way it was reached.
    best = int(np.flatnonzero(np.isclose(f1, f1.max(), rtol=1e-12, atol=0))[-1])
    threshold = float(curve.thresholds[best])
    if best:
        below = float(curve.thresholds[best - 1])
        halfway = below + (threshold - below) / 2
        # Between two neighbouring floats there is no halfway.
        threshold = halfway if below < halfway else threshold
    return Threshold(threshold, float(f1[best]), float(curve.precision[best]), float(curve.recall[best]))


def average_precision(scores: Values, labels: Values) -> float:
    """Σ (R_n − R_{n−1}) P_n from the highest threshold down, uninterpolated; equal scores are one step.

    The share of labels that are 1 is what scores without meaning reach. Raises `ValueError` where no label
    is 1.
    """
    curve = precision_recall_curve(scores, labels)
    steps = curve.recall - np.append(curve.recall[1:], 0.0)
    return float(steps @ curve.precision)


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
    agreed = sum(one == other for one, other in zip(left, right, strict=True))
    totals = Counter(right)
    by_chance = sum(times * totals[category] for category, times in Counter(left).items())
    # In whole numbers, times N²: 1 − p_e is exactly 0 where it should be.
    return (agreed * count - by_chance) / (count**2 - by_chance) if by_chance < count**2 else None


def log_loss(logits: Values, labels: Values) -> float:
    """Mean of −log σ(z) where the label is 1 and −log σ(−z) where it is 0: z are logits, not probabilities.

    From logits it is finite and exact, however sure the head is. In nats.
    """
    found, marked = _scored(logits, labels)
    return float(np.logaddexp(0, np.where(marked == 1, -found, found)).mean())


def prior_log_loss(labels: Values, prior: float | None = None) -> float:
    """Log-loss of saying `prior` of every example: what a head must beat to have learned anything. In nats.

    −q log p − (1 − q) log(1 − p), q the share of labels that are 1. p is the share among the training
    labels; by default it is q itself, the best that any constant can do on these very labels. Infinite
    where a prior of 0 or 1 is contradicted.
    """
    (marked,) = alike(("labels", labels))
    _require_binary(marked)
    share = float(marked.mean())
    said = share if prior is None else prior
    if not 0 <= said <= 1:
        raise ValueError(f"the prior {said} must lie in [0, 1]")
    terms = ((share, said), (1 - share, 1 - said))
    return sum(-part * math.log(chance) if chance else math.inf for part, chance in terms if part)


def _scored(scores: Values, labels: Values) -> tuple[Floats, Floats]:
    found, marked = alike(("scores", scores), ("labels", labels))
    _require_binary(marked)
    return found, marked


def _require_binary(labels: Floats) -> None:
    if not np.isin(labels, (0, 1)).all():
        raise ValueError("labels must be 0 or 1")


def _from_top(counts: Floats) -> Floats:
    """Sums from each place to the last."""
    sums: Floats = np.cumsum(counts[::-1])[::-1]
    return sums


def _categories(values: Sequence[Hashable] | Tensor) -> list[Hashable]:
    return list(values.tolist()) if isinstance(values, Tensor) else list(values)
