"""Figures of a reward model on held-out judgments: accuracy, calibration, baselines, people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.formats import number_format
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext

from annotation.agreement.estimate import Estimate
from annotation.statistics.labels import FIGURES
from annotation.statistics.plots import Axis
from annotation.statistics.report import Report
from training.contract.run import EvaluationReport
from training.contract.validation import (
    BASELINE_NAMES,
    BaselineFigures,
    BaselineName,
    BaselineReport,
    CandidateName,
    Comparison,
    DriftFigures,
    GroupFigures,
    Interval,
    PeopleReport,
    ReliabilityFigures,
    RewardCandidate,
    RewardChoice,
    baselines_from_details,
    choice_from_details,
    people_from_details,
)

# ── Baselines ──
#
# Reads the trainer's output and an agreement report; uses no database and no torch.


BASELINE_FIGURES = tuple(
    f"held_out_{name}_{figure}" for name in BASELINE_NAMES for figure in ("accuracy", "log_loss")
)
"""Held-out figures that the table of baselines shows."""

NAMES: dict[BaselineName, str | Promise] = {
    "position": gettext_lazy("position alone"),
    "length": gettext_lazy("length alone"),
    "surface": gettext_lazy("surface features"),
    "frozen": gettext_lazy("a head on frozen features"),
}
CANDIDATES: dict[CandidateName, str | Promise] = {
    "length": NAMES["length"],
    "surface": NAMES["surface"],
    "frozen": NAMES["frozen"],
    "adapter": gettext_lazy("an adapter"),
}
FEATURES: dict[str, str | Promise] = {
    "words": gettext_lazy("number of words"),
    "log_words": gettext_lazy("logarithm of the number of words"),
    "list_items": gettext_lazy("list items"),
    "overlap_prompt": gettext_lazy("words shared with the prompt"),
    "overlap_context": gettext_lazy("words shared with the context"),
    "refusal": gettext_lazy("phrases of refusal"),
    "truncated": gettext_lazy("ending amid a sentence"),
}
CEILINGS = ("pair-percent", "retest")
"""Figures of the agreement report that bound what a reward model can reach."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineRow:
    """A baseline in the table."""

    name: str
    figures: BaselineFigures
    comparison: Comparison


@dataclass(frozen=True, kw_only=True, slots=True)
class CorrelationRow:
    """A surface feature, and how far the model's score differences follow it."""

    name: str
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Ceiling:
    """Agreement of people with each other, or of each with themselves."""

    key: str
    name: str
    estimate: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class Baselines:
    """The comparison of a reward model with its baselines."""

    report: BaselineReport
    accuracy: Interval
    log_loss: Interval
    rows: tuple[BaselineRow, ...]
    summary: str
    """One sentence: what the model beats, and what it leans on."""
    correlations: tuple[CorrelationRow, ...]
    """The strongest first."""
    ceilings: tuple[Ceiling, ...]
    """Empty until the agreement of the project was computed."""


def baselines_of(evaluation: EvaluationReport | None, agreement: Report | None = None) -> Baselines | None:
    """Return the comparison in a run's last evaluation; None without one."""
    report = None if evaluation is None else baselines_from_details(evaluation.details)
    if report is None:
        return None
    rows = tuple(
        BaselineRow(
            name=str(NAMES[baseline.name]), figures=baseline, comparison=report.compared_with(baseline)
        )
        for baseline in report.baselines
    )
    by_size = sorted(report.correlations.items(), key=lambda entry: -abs(entry[1]))
    return Baselines(
        report=report,
        accuracy=report.accuracy,
        log_loss=report.log_loss,
        rows=rows,
        summary=_summary(report, rows),
        correlations=tuple(
            CorrelationRow(name=str(FEATURES.get(name, name)), value=value) for name, value in by_size
        ),
        ceilings=tuple(_ceilings(agreement)),
    )


def _summary(report: BaselineReport, rows: Sequence[BaselineRow]) -> str:
    parts = []
    for comparison, words in (
        ("better", _("better than %(names)s")),
        ("level", _("level with %(names)s")),
        ("worse", _("worse than %(names)s")),
        ("unknown", _("too few held-out prompts to compare with %(names)s")),
    ):
        names = [row.name for row in rows if row.comparison == comparison]
        if names:
            parts.append(words % {"names": ", ".join(names)})
    strongest = report.strongest_correlation()
    if strongest is not None:
        name, value = strongest
        parts.append(
            _("scores follow %(feature)s most (correlation %(value)s)")
            % {"feature": FEATURES.get(name, name), "value": number_format(value, 2)}
        )
    if report.length_controlled_accuracy is not None:
        controlled = number_format(100 * report.length_controlled_accuracy, 1)
        parts.append(_("accuracy with length controlled %(value)s %%") % {"value": controlled})
    return _("By log-loss the model is: %(parts)s.") % {"parts": "; ".join(parts)}


def _ceilings(agreement: Report | None) -> list[Ceiling]:
    figures = {} if agreement is None else {figure.key: figure.estimate for figure in agreement.figures}
    return [
        Ceiling(key=key, name=str(FIGURES[key][0]), estimate=figures[key])
        for key in CEILINGS
        if key in figures and figures[key].value is not None
    ]


# ── The choice of a reward model ──


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateRow:
    """A candidate in the table."""

    name: str
    log_loss: Interval
    accuracy: Interval
    is_chosen: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardModelChoice:
    """The reward model that was chosen, and those that it was chosen from."""

    title: str
    summary: str
    """One sentence: what was chosen, why, and the runner-up."""
    rows: tuple[CandidateRow, ...]


def choice_of(evaluation: EvaluationReport | None) -> RewardModelChoice | None:
    """Return the choice in a run's last evaluation; None where the settings left none."""
    choice = None if evaluation is None else choice_from_details(evaluation.details)
    if choice is None:
        return None
    rows = tuple(
        CandidateRow(
            name=_name_of(entry),
            log_loss=entry.log_loss,
            accuracy=entry.accuracy,
            is_chosen=entry.name == choice.chosen,
        )
        for entry in choice.candidates
    )
    return RewardModelChoice(title=_name_of(choice.winner), summary=_summary_of_choice(choice), rows=rows)


def _name_of(entry: RewardCandidate) -> str:
    name = str(CANDIDATES[entry.name])
    if not entry.layer:
        return name
    place = _("mean of layer %(layer)d") if entry.mean else _("last token of layer %(layer)d")
    return f"{name} ({place % {'layer': entry.layer}})"


def _summary_of_choice(choice: RewardChoice) -> str:
    figures = {
        "chosen": _name_of(choice.winner),
        "loss": _bounds(choice.winner.log_loss),
        "judgments": choice.judgments,
        "prompts": choice.prompts,
    }
    if choice.measured_on == "held_out":
        told = _(
            "Of %(judgments)d decided annotations of %(prompts)d prompts, those of a tenth of the prompts "
            "chose %(chosen)s: log-loss %(loss)s on held-out annotations."
        )
    else:
        told = _(
            "Cross-validation on %(judgments)d decided annotations, grouped by their %(prompts)d prompts, "
            "chose %(chosen)s: log-loss %(loss)s."
        )
    other = choice.runner_up
    if other is None:
        return told % figures
    runner_up = _("Runner-up: %(name)s, %(loss)s.")
    return f"{told % figures} {runner_up % {'name': _name_of(other), 'loss': _bounds(other.log_loss)}}"


def _bounds(figure: Interval) -> str:
    value = number_format(figure.value, 3)
    if figure.low is None or figure.high is None:
        return value
    return f"{value} ({number_format(figure.low, 3)} – {number_format(figure.high, 3)})"


# ── Held-out figures ──
#
# Reads the trainer's output; uses no database and no torch.


_PREFIX = "held_out_"
# A diagram is a square that begins at one half, the least probability of a pair's favourite.
_SAID = Axis(start=0.5, end=1.0, length=200.0)
_SEEN = Axis(start=1.0, end=0.0, length=200.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOutFigure:
    """A held-out figure, with its 95 % interval if the trainer gave one."""

    title: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Bin:
    """Pairs of about the same predicted probability: the position of their dot and interval."""

    count: int
    predicted: float
    """Mean probability that the model gave its favourite."""
    seen: float
    """Share of them in which people agreed."""
    low: float
    high: float
    x: float
    y: float
    y_low: float
    y_high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagram:
    """A reliability diagram: observed accuracy by predicted probability."""

    head: str
    calibrated: bool
    """True if the margins were divided by the temperature first."""
    bins: tuple[Bin, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """The evaluation of the state that is, or would be, the checkpoint."""

    step: int
    figures: tuple[HeldOutFigure, ...]
    diagrams: tuple[Diagram, ...]


def held_out_of(report: EvaluationReport | None) -> HeldOut | None:
    """Return a report's figures and diagrams; None before the first evaluation or without held-out data."""
    if report is None or not report.figures:
        return None
    return HeldOut(
        step=report.step,
        figures=figures_of(
            {name: value for name, value in report.figures.items() if name not in BASELINE_FIGURES}
        ),
        diagrams=tuple(_diagrams(report.details)),
    )


def figures_of(values: Mapping[str, float | None]) -> tuple[HeldOutFigure, ...]:
    """Return figures by name, each with its bounds `…_low` and `…_high`."""
    return tuple(
        HeldOutFigure(
            title=name.removeprefix(_PREFIX).replace("_", " "),
            value=value,
            low=values.get(f"{name}_low"),
            high=values.get(f"{name}_high"),
        )
        for name, value in sorted(values.items())
        if value is not None and not _is_bound(name, values)
    )


def _is_bound(name: str, values: Mapping[str, float | None]) -> bool:
    return any(name.endswith(end) and name.removesuffix(end) in values for end in ("_low", "_high"))


def _diagrams(details: Mapping[str, Any]) -> list[Diagram]:
    diagrams = []
    for head, parts in sorted(details.items()):
        for name, calibrated in (("reliability", False), ("reliability_calibrated", True)):
            if isinstance(parts, Mapping) and parts.get(name):
                diagrams.append(Diagram(head=head, calibrated=calibrated, bins=_bins(parts[name])))
    return diagrams


def _bins(values: Sequence[Mapping[str, Any]]) -> tuple[Bin, ...]:
    return tuple(
        Bin(
            count=row["count"],
            predicted=row["mean_probability"],
            seen=row["observed"],
            low=row["observed_low"],
            high=row["observed_high"],
            x=_SAID.place(row["mean_probability"]),
            y=_SEEN.place(row["observed"]),
            y_low=_SEEN.place(row["observed_low"]),
            y_high=_SEEN.place(row["observed_high"]),
        )
        for row in values
    )


# ── People ──
#
# Reads the trainer's output; uses no database and no torch.


_LEAST_SHOWN = 0.001


@dataclass(frozen=True, kw_only=True, slots=True)
class PeopleFigures:
    """Groups, drift and reliability of a reward model's run."""

    report: PeopleReport
    summaries: tuple[str, ...]
    """A sentence for each group, in their order."""
    drift: str
    reliability: str
    """A sentence each; empty where nothing was measured."""


def people_of(evaluation: EvaluationReport | None) -> PeopleFigures | None:
    """Return the report in a run's last evaluation; None without one."""
    report = None if evaluation is None else people_from_details(evaluation.details)
    if report is None:
        return None
    return PeopleFigures(
        report=report,
        summaries=tuple(_people_summary(group) for group in report.groups),
        drift=_drift(report.drift, report.half_life),
        reliability="" if report.reliability_weights is None else _reliability(report.reliability_weights),
    )


def _people_summary(group: GroupFigures) -> str:
    if group.disagreement == "unknown":
        return _("%(group)s: too few held-out annotations to compare with the common score.") % {
            "group": group.name
        }
    if group.disagreement == "agrees":
        return _("%(group)s agrees with the common score.") % {"group": group.name}
    if not group.differences:
        return _("%(group)s disagrees with the common score, on no surface feature alone.") % {
            "group": group.name
        }
    features = ", ".join(
        _("%(feature)s %(more)s")
        % {
            "feature": FEATURES.get(difference.feature, difference.feature),
            "more": pgettext("valued", "more") if difference.difference > 0 else pgettext("valued", "less"),
        }
        for difference in group.differences
    )
    return _("%(group)s disagrees with the other annotators. It values: %(features)s.") % {
        "group": group.name,
        "features": features,
    }


def _drift(drift: DriftFigures | None, half_life: float | None) -> str:
    if drift is None:
        if half_life is None:
            return ""
        return _("An annotation counts half after %(rounds)s rounds, as the recipe says.") % {
            "rounds": number_format(half_life, 1)
        }
    p_value = (
        f"p < {number_format(_LEAST_SHOWN, 3)}"
        if drift.p_value < _LEAST_SHOWN
        else f"p = {number_format(drift.p_value, 3)}"
    )
    if half_life is None:
        return _("No significant drift (%(p)s): all annotations count alike.") % {"p": p_value}
    return _(
        "Preferences drift (%(p)s): an annotation counts half after %(rounds)s rounds. To switch this off, "
        "set discount_drift to off in the recipe."
    ) % {"p": p_value, "rounds": number_format(half_life, 1)}


def _reliability(figures: ReliabilityFigures) -> str:
    if figures.gain.low is not None and figures.gain.low > 0:
        text = _("Reliability weights help: held-out log-loss %(with)s with them, %(without)s without.")
    elif figures.gain.high is not None and figures.gain.high < 0:
        text = _("Reliability weights harm: held-out log-loss %(with)s with them, %(without)s without.")
    else:
        text = _(
            "Reliability weights make no clear difference: held-out log-loss %(with)s with them, "
            "%(without)s without."
        )
    return text % {
        "with": number_format(figures.log_loss.value, 3),
        "without": number_format(figures.unweighted_log_loss.value, 3),
    }
