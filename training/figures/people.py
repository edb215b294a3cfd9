"""Differences between groups of annotators, for display: a table and one sentence for each group.

Reads the trainer's output; uses no database and no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from training.contract import (
    DriftFigures,
    EvaluationReport,
    GroupFigures,
    PeopleReport,
    ReliabilityFigures,
    people_from_details,
)
from training.figures.baselines import FEATURES

_LEAST_SHOWN = 0.001


@dataclass(frozen=True, kw_only=True, slots=True)
class People:
    """Groups, drift and reliability of a reward model's run."""

    report: PeopleReport
    summaries: tuple[str, ...]
    """A sentence for each group, in their order."""
    drift: str
    reliability: str
    """A sentence each; empty where nothing was measured."""


def people_of(evaluation: EvaluationReport | None) -> People | None:
    """Return the report in a run's last evaluation; None without one."""
    report = None if evaluation is None else people_from_details(evaluation.details)
    if report is None:
        return None
    return People(
        report=report,
        summaries=tuple(_summary(group) for group in report.groups),
        drift=_drift(report.drift, report.half_life),
        reliability="" if report.reliability_weights is None else _reliability(report.reliability_weights),
    )


def _summary(group: GroupFigures) -> str:
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
