"""Dependence of a reward model on surface features: their score differences beside its own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from training.rlhf.measures.calibration import Floats, cosine


def length_controlled_accuracy(margins: Floats, longer: Floats, share: Floats) -> float | None:
    """Return the mean of two accuracies: where the longer completion was chosen, and where the shorter was.

    Length alone has ½. margins, longer, share: (pairs,), `longer` the length of the chosen less the rejected.
    None where one of the two kinds has no pair.
    """
    right = (np.sign(margins) + 1) / 2
    parts = [kind for kind in (longer > 0, longer < 0) if kind.any()]
    if len(parts) < 2:
        return None
    return float(np.mean([np.average(right[part], weights=share[part]) for part in parts]))


def correlations(margins: Floats, features: Mapping[str, Floats]) -> dict[str, float]:
    """Return the correlation of score differences with each feature's differences over pairs.

    Every pair counts in both orders, so both means are 0 (see `calibration.length_bias`). Features that never
    differ, and all where no scores differ, are left out.
    """
    if not margins.any():
        return {}
    return {name: cosine(margins, values) for name, values in features.items() if values.any()}
