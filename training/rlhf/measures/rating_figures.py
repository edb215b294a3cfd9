"""Figures on ratings: of predicted values, of chances, and of levels. All take (N,) tensors.

A figure that does not exist, such as a correlation where all ratings are equal, is left out.
"""

from __future__ import annotations

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from training.rlhf.measures.calibration import Values, doubles


def spearman(left: Values, right: Values) -> float | None:
    """Correlation of the ranks, ties at their mean rank (Spearman 1904); None where one side is constant."""
    from scipy.stats import spearmanr  # takes a second, and few runs have ratings

    first, second = doubles(left, "left"), doubles(right, "right")
    constant = np.ptp(first) == 0 or np.ptp(second) == 0
    return None if constant else float(spearmanr(first, second).statistic)


def area_under_curve(scores: Values, labels: Values) -> float | None:
    """Probability that an example with label 1 scores higher than one with label 0, ties half (Hanley &
    McNeil 1982). None where a label does not occur."""
    from scipy.stats import rankdata

    ranks, targets = rankdata(doubles(scores, "scores")), doubles(labels, "labels")
    positive = targets == 1
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        return None
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


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
    if (area := area_under_curve(logit, happened)) is not None:
        figures["auc"] = area
    return figures
