"""Heads on the steps of a trace, fitted to step labels: process reward models (Lightman et al. 2023)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from training.rlhf.measures.classification import roc_auc
from training.rlhf.methods.objectives.segment_scores import read_of
from training.rlhf.methods.objectives.segments import ReadAnswer, SegmentObjective
from training.rlhf.tokens.example import Example


class StepObjective(SegmentObjective):
    """Step classification: −log σ(r) for a step without a fault, −log σ(−r) for a step labelled with one.

    r is read at the step's last token. Faults are the labels that the head's categories name: wrong,
    unnecessary or both; a label that they do not name is none. Steps without a label count nowhere.

    Figures as of a `SegmentObjective`. Held-out also `accuracy`, the share of steps on the right side of
    r = 0, `baseline_accuracy`, that of calling every step what most training steps are, and where there are
    steps of both kinds `auc`, the chance that a faulty step has a lower r than a faultless one, equal ones
    counted half; a head that knows nothing has ½.
    """

    units = "labelled step of the training answers"
    marked = "is labelled"
    without = "step is labelled"

    def weight(self, example: Example) -> float:
        """Return the judgment's weight where any step is labelled."""
        return example.weight if any(True for _ in self.read(example)) else 0.0

    def read(self, example: Example) -> Iterator[ReadAnswer]:
        """Yield the answers of an example that have labelled steps."""
        for place, labelled in example.labels.steps:
            faults = {(step.start, step.end): step.label in self.head.categories for step in labelled}
            segments = read_of(list(faults), example.answers[place])
            if segments:
                yield ReadAnswer(place, segments, torch.tensor([faults[segment] for segment in segments]))

    def marks(self, example: Example) -> list[str]:
        """Return the labels of an example's steps."""
        return [step.label for _, labelled in example.labels.steps for step in labelled]

    def held_out_figures(self, rewards: Tensor, faulty: Tensor, share: Tensor) -> dict[str, float]:
        """See the class."""
        commoner = 1.0 if self.prior > 0.5 else 0.0
        auc = roc_auc(-rewards, faulty)
        return {
            **super().held_out_figures(rewards, faulty, share),
            "accuracy": float(((rewards < 0) == faulty.bool()).double().mean()),
            "baseline_accuracy": float((faulty == commoner).double().mean()),
            **({} if auc is None else {"auc": auc}),
        }
