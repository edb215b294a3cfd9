"""A reward model beside its baselines, for display: a table, one sentence, and the ceiling that people set.

Reads the trainer's output and an agreement report; uses no database and no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.formats import number_format
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from annotation.agreement.estimate import Estimate
from annotation.statistics.labels import FIGURES
from annotation.statistics.report import Report
from training.contract import (
    BASELINE_NAMES,
    BaselineFigures,
    BaselineName,
    BaselineReport,
    Comparison,
    EvaluationReport,
    Interval,
    baselines_from_details,
)

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
