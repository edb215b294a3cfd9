"""Validation of a reward model: its held-out figures, compared with simpler predictors.

The trainer writes the figures, the web process reads them from the checkpoint's manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from annotation.record.base import CountOrZero, Figure, Positive, decode, record, require

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


# ── Baselines of a reward model: predictors that it has to beat on the same held-out judgments ──
#
# The trainer writes them into the details of the last evaluation; the web process shows them.


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
class RewardCandidate:
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
    candidates: Annotated[tuple[RewardCandidate, ...], Field(min_length=1)]
    """By log-loss, the lowest first."""
    measured_on: Literal["cross_validation", "held_out"]
    """cross_validation: training judgments, grouped by prompt. held_out: an adapter was tried and is among
    the candidates; figures are those of held-out judgments, and a tenth of the training prompts chose."""
    judgments: CountOrZero
    """Decided training judgments."""
    prompts: CountOrZero

    @property
    def runner_up(self) -> RewardCandidate | None:
        """Return the best of those that were not chosen."""
        return next((entry for entry in self.candidates if entry.name != self.chosen), None)

    @property
    def winner(self) -> RewardCandidate:
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


# ── Differences between groups of annotators, and effects of time and reliability on a reward model ──
#
# The trainer writes it into the details of the last evaluation; the web process shows it.


PEOPLE_KEY = "people"
"""Name of the report in `EvaluationReport.details`."""

SIGNIFICANT = 0.05
"""Drift is discounted, and a difference of groups named, at p-values below this one."""

Disagreement = Literal["disagrees", "agrees", "unknown"]


@record
class Population:
    """Whose reward counts, of a reward model with heads of groups."""

    reward: Literal["common", "groups", "worst_group"] = "common"
    """common: what all annotators have in common. groups: the mean of the groups' rewards by their weights.
    worst_group: the smallest of the groups' rewards."""
    groups: dict[str, Positive] = field(default_factory=dict)
    """Weight of each group that counts; empty counts all of them alike. With worst_group weights only name
    the groups."""

    def __post_init__(self) -> None:
        require(
            self.reward != "common" or not self.groups,
            "groups",
            "the common reward has no groups; set reward to 'groups' or 'worst_group'",
        )


@record
class GroupDifference:
    """A surface feature that a group values otherwise than the other annotators do."""

    feature: str
    difference: Figure
    """Coefficient of the group less that of the others, in log odds for one standard deviation."""
    low: Figure
    high: Figure
    """95 % interval."""
    p_value: Figure
    """Two-sided, times the number of features and groups compared (Bonferroni)."""


@record
class GroupFigures:
    """One group of annotators on its own held-out judgments."""

    name: str
    annotators: CountOrZero
    """Annotators of the group in the training judgments."""
    trained: CountOrZero
    """Training judgments of the group."""
    judgments: CountOrZero
    """Held-out judgments of the group that decide a pair."""
    prompts: CountOrZero
    accuracy: Interval | None = None
    """Agreement of the common score with the group's held-out judgments; None without any."""
    own_accuracy: Interval | None = None
    """The same of the group's own score; None where the model has none."""
    gain: Interval | None = None
    """Log-loss of the common score less that of the group's own: above 0 its own is better."""
    differences: tuple[GroupDifference, ...] = ()
    """Surface features that the group values otherwise, the largest difference first."""

    @property
    def disagreement(self) -> Disagreement:
        """Return whether the group's own score predicts it better, or a surface feature tells it apart."""
        if self.differences:
            return "disagrees"
        if self.gain is None or self.gain.low is None or self.prompts < FEWEST_PROMPTS:
            return "unknown"
        return "disagrees" if self.gain.low > 0 else "agrees"


@record
class DriftFigures:
    """A test for drift: does discounting older judgments predict the newest round better?"""

    round: CountOrZero
    """The newest round with enough prompts, whose training judgments are predicted."""
    judgments: CountOrZero
    p_value: Figure
    """One-sided, of the mean log-loss saved over prompts, times the number of half-lives tried."""
    half_life: Figure
    """Rounds after which a judgment counts half, where most log-loss is saved."""
    gain: Interval
    """Cross-validated log-loss of equal weights less that of discounted ones."""
    applied: bool
    """True if the reward model learned with the discount."""


@record
class ReliabilityFigures:
    """Effect of the annotators' reliability weights on a head fitted with and without them."""

    judgments: CountOrZero
    """Held-out judgments, each counted once."""
    log_loss: Interval
    """Held-out log-loss with the weights."""
    unweighted_log_loss: Interval
    gain: Interval
    """Log-loss without less that with the weights: above 0 the weights help."""


@record
class PeopleReport:
    """Groups, drift and reliability of one reward model."""

    groups: tuple[GroupFigures, ...] = ()
    drift: DriftFigures | None = None
    """None where nothing was tested: one round, or too few prompts in the newest."""
    half_life: Figure | None = None
    """Rounds after which a judgment counted half in training; None where all counted alike."""
    reliability_weights: ReliabilityFigures | None = None
    """None where all judgments weigh alike."""
    group_strength: Figure | None = None
    """Penalty of the groups' deviations, chosen by cross-validation; None where nothing was chosen, and
    where it is infinite: groups share the common score."""
    annotator_strength: Figure | None = None
    """The same of annotators' deviations."""
    first_place: Figure | None = None
    """Lead of the response shown first over the last, in log odds, as the score allows for it; None where
    it does not."""


def people_from_details(details: Mapping[str, Any]) -> PeopleReport | None:
    """Return the report in an evaluation's details; None where there is none."""
    values = details.get(PEOPLE_KEY)
    return None if values is None else decode(PeopleReport, values, PEOPLE_KEY)
