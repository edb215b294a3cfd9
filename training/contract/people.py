"""Differences between groups of annotators, and effects of time and reliability on a reward model.

The trainer writes it into the details of the last evaluation; the web process shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from annotation.record.base import CountOrZero, Figure, Positive, decode, record, require
from training.contract.validation import FEWEST_PROMPTS, Interval

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
