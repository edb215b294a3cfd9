"""Baselines of a reward model: predictors that it has to beat on the same held-out judgments.

The trainer writes them into the details of the last evaluation; the web process shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from annotation.record.base import CountOrZero, Figure, decode, record

BASELINES_KEY = "baselines"
"""Name of the comparison in `EvaluationReport.details`."""

BaselineName = Literal["position", "length", "surface", "frozen"]
BASELINE_NAMES: tuple[BaselineName, ...] = ("position", "length", "surface", "frozen")
"""Place on the annotator's screen; log length; surface features; a linear head on frozen features."""

CHOICE_KEY = "choice"
"""Name of the choice of a reward model in `EvaluationReport.details`."""
ADAPTER_FROM = 500
"""Decided training judgments from which on an adapter is tried."""

CandidateName = Literal["length", "surface", "frozen", "adapter"]

Comparison = Literal["better", "level", "worse", "unknown"]
FEWEST_PROMPTS = 20
"""With fewer held-out prompts an interval by bootstrap over prompts is too narrow to compare by."""


@record
class Interval:
    """A figure with its 95 % interval; no bounds where there is one prompt only."""

    value: Figure
    low: Figure | None = None
    high: Figure | None = None


@record
class BaselineFigures:
    """One baseline on the held-out judgments, and the reward model's gain over it by the same pairs."""

    name: BaselineName
    accuracy: Interval
    log_loss: Interval
    accuracy_gain: Interval
    """Accuracy of the reward model less that of the baseline."""
    log_loss_gain: Interval
    """Log-loss of the baseline less that of the reward model: above 0 the model is better."""
    layer: CountOrZero = 0
    """Block whose states a head on frozen features reads, chosen by cross-validation; 0 for the others."""
    mean: bool = False
    """True if it reads the mean over a completion's tokens, else the last token."""
    strength: Figure | None = None
    """Strength of the ridge, chosen by cross-validation; None for length, whose prior is fixed."""


@record
class BaselineReport:
    """A reward model beside its baselines on decided held-out judgments."""

    judgments: CountOrZero
    """Held-out judgments compared; all of them, or those of prompts drawn by hash up to a bound."""
    prompts: CountOrZero
    trained: CountOrZero
    """Training judgments that position, length and surface features were fitted to."""
    trained_on_features: CountOrZero
    """The same of the head on frozen features, up to a bound; 0 without one."""
    accuracy: Interval
    """Of the reward model, on the same pairs."""
    log_loss: Interval
    baselines: tuple[BaselineFigures, ...]
    length_controlled_accuracy: Figure | None
    """Mean of the accuracy where the longer completion was chosen and where the shorter was: ½ for length
    alone. None where one of the two never happened."""
    correlations: dict[str, Figure]
    """Correlation of the score difference with each surface feature's difference, −1 to 1, by feature; both
    orders of a pair count. Features that never differ are left out."""

    def compared_with(self, baseline: BaselineFigures) -> Comparison:
        """Return how the model compares by log-loss: level where the interval of the gain holds 0."""
        gain = baseline.log_loss_gain
        if self.prompts < FEWEST_PROMPTS or gain.low is None or gain.high is None:
            return "unknown"
        if gain.low > 0:
            return "better"
        return "worse" if gain.high < 0 else "level"

    def strongest_correlation(self) -> tuple[str, float] | None:
        """Return the surface feature that the scores follow most, with its correlation."""
        by_size = sorted(self.correlations.items(), key=lambda entry: (-abs(entry[1]), entry[0]))
        return by_size[0] if by_size else None


@record
class Candidate:
    """A predictor that the choice looked at, on judgments that it was not fitted to."""

    name: CandidateName
    log_loss: Interval
    accuracy: Interval
    layer: CountOrZero = 0
    """Block whose states a head reads; 0 for the others."""
    mean: bool = False
    """True if it reads the mean over a completion's tokens, else the last token."""


@record
class RewardChoice:
    """The reward model that `features: auto` chose."""

    chosen: CandidateName
    candidates: Annotated[tuple[Candidate, ...], Field(min_length=1)]
    """By log-loss, the lowest first."""
    measured_on: Literal["cross_validation", "held_out"]
    """cross_validation: training judgments, grouped by prompt. held_out: an adapter was tried and is among
    the candidates; figures are those of held-out judgments, and a tenth of the training prompts chose."""
    judgments: CountOrZero
    """Decided training judgments."""
    prompts: CountOrZero

    @property
    def runner_up(self) -> Candidate | None:
        """Return the best of those that were not chosen."""
        return next((entry for entry in self.candidates if entry.name != self.chosen), None)

    @property
    def winner(self) -> Candidate:
        """Return the one that was chosen."""
        return next(entry for entry in self.candidates if entry.name == self.chosen)


def choice_from_details(details: Mapping[str, Any]) -> RewardChoice | None:
    """Return the choice in an evaluation's details; None where there was none."""
    values = details.get(CHOICE_KEY)
    return None if values is None else decode(RewardChoice, values, CHOICE_KEY)


def baselines_from_details(details: Mapping[str, Any]) -> BaselineReport | None:
    """Return the comparison in an evaluation's details; None where there is none."""
    values = details.get(BASELINES_KEY)
    return None if values is None else decode(BaselineReport, values, BASELINES_KEY)
