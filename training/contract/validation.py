"""Validation of a reward model: its held-out figures, compared with simpler predictors.

The trainer writes the figures, the web process reads them from the checkpoint's manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

_PREFIX = "held_out_"

Baseline = Literal["constant", "position", "length", "surface", "frozen"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardModelValidation:
    """Figures of a reward model on decided held-out judgments. All losses are of the same pairs."""

    decided: int
    """Held-out judgments that prefer a completion to another."""
    accuracy: float
    """Share of pairs ordered as the annotator ordered them; each judgment counts once."""
    low: float
    """Lower end of the accuracy's 95 % interval; 0 where it is unknown."""
    high: float
    """Upper end; 1 where it is unknown."""
    log_loss: float
    """Mean of −log σ(r⁺ − r⁻), in nats."""
    constant_log_loss: float | None
    """The same of a predictor that gives every pair one half: log 2. None in older checkpoints."""
    length_log_loss: float | None
    """The same of σ(b · log(length⁺ / length⁻)), b fitted to the training judgments; None as above."""
    temperature: float | None
    """Reward differences divided by it are likeliest; None with too few held-out judgments."""
    scaled_log_loss: float | None
    """Log-loss of the differences divided by a temperature fitted to other prompts; None as above."""
    position_log_loss: float | None = None
    """Log-loss of a completion's place among the others; None where baselines were not computed."""
    surface_log_loss: float | None = None
    """Log-loss of a linear score of surface features; None as above."""
    frozen_log_loss: float | None = None
    """Log-loss of a linear head on frozen features of the base; None as above."""

    def worse_than(self) -> list[tuple[Baseline, float]]:
        """Return the baselines with a lower log-loss than the reward model, each with that log-loss."""
        baselines: list[tuple[Baseline, float | None]] = [
            ("constant", self.constant_log_loss),
            ("position", self.position_log_loss),
            ("length", self.length_log_loss),
            ("surface", self.surface_log_loss),
            ("frozen", self.frozen_log_loss),
        ]
        return [(name, loss) for name, loss in baselines if loss is not None and self.log_loss > loss]


def validation_from_figures(figures: Mapping[str, float | None]) -> RewardModelValidation | None:
    """Return the validation in a run's held-out figures; None where no held-out pair was scored."""

    def figure(name: str) -> float | None:
        return figures.get(_PREFIX + name)

    accuracy, log_loss = figure("accuracy"), figure("log_loss")
    if accuracy is None or log_loss is None:
        return None
    low, high = figure("accuracy_low"), figure("accuracy_high")
    decided = figure("decided")
    scaled = figure("scaled_log_loss")
    return RewardModelValidation(
        # Releases before the figure counted the judgments that were evaluated, ties among them.
        decided=int(decided if decided is not None else figure("judgments") or 0),
        accuracy=accuracy,
        low=0.0 if low is None else low,
        high=1.0 if high is None else high,
        log_loss=log_loss,
        constant_log_loss=figure("constant_log_loss"),
        length_log_loss=figure("length_log_loss"),
        temperature=None if scaled is None else figure("temperature"),
        scaled_log_loss=scaled,
        position_log_loss=figure("position_log_loss"),
        surface_log_loss=figure("surface_log_loss"),
        frozen_log_loss=figure("frozen_log_loss"),
    )
