"""States, times and digests on the training pages."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from django import template
from django.utils.formats import number_format
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from annotation.templatetags.annotation import audit_details
from training.choices import ChartGroup, RoundState, RunState, StepState

register = template.Library()

_STEP_MARKS = {
    StepState.WAITING: "waiting",
    StepState.RUNNING: "running",
    StepState.FINISHED: "done",
    StepState.FAILED: "failed",
    StepState.CANCELLED: "ended",
}
_BADGES = {
    RoundState.SAMPLING: "accent",
    RoundState.LABELLING: "accent",
    RoundState.TRAINING_REWARD_MODELS: "accent",
    RoundState.TRAINING_POLICY: "accent",
    RoundState.EVALUATING: "accent",
    RoundState.DECIDING: "warn",
    RoundState.PROMOTED: "good",
    RoundState.REJECTED: "bad",
    RoundState.NOT_ENOUGH_EVIDENCE: "warn",
    RoundState.PAUSED: "warn",
    RoundState.FAILED: "bad",
    RoundState.CANCELLED: "warn",
    RunState.STARTING: "accent",
    RunState.RUNNING: "accent",
    RunState.STOPPED: "warn",
}

_ACTION_LABELS = {
    "round.draft": _("drafted"),
    "round.open": _("opened"),
    "round.recipe": _("changed the recipe"),
    "round.start": _("started training"),
    "round.not_enough_evidence": _("ended without enough evidence"),
    "round.pause": _("paused"),
    "round.resume": _("resumed"),
    "round.cancel": _("cancelled"),
    "round.again": _("started again"),
    "round.reopen": _("took back to labelling"),
    "round.retry": _("repeated a step"),
    "round.promote": _("promoted"),
    "round.reject": _("rejected"),
    "round.rollback": _("rolled back"),
}


@register.filter
def action_label(action: str) -> str | Promise:
    """Return an action of the audit log in words; an unknown action as it is."""
    return _ACTION_LABELS.get(action, action)


@register.filter
def details(values: Mapping[str, object]) -> str:
    """Return the details of an audit entry in one line; empty ones are left out."""
    return audit_details(values)


@register.filter
def step_mark(state: str) -> str:
    """The `data-state` of a step in a `.steps` list."""
    return _STEP_MARKS.get(StepState(state), "waiting")


@register.filter
def badge(state: str) -> str:
    """The class of a state's badge."""
    kind = next((kind for known, kind in _BADGES.items() if known == state), "")
    return f"badge badge--{kind}" if kind else "badge"


@register.filter
def duration(seconds: float | None) -> str:
    """Seconds as people say them: `45 s`, `3 min`, `1 h 20 min`; nothing for None."""
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


@register.filter
def figure(value: float | None) -> str:
    """A measured number with four significant digits."""
    return "" if value is None else f"{value:.4g}"


@register.filter
def plain_value(value: Any) -> str | Promise:
    """Return a setting or a metric in one line; a dash for None."""
    if value is None:
        return "—"
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, timedelta):
        return duration(value.total_seconds())
    if isinstance(value, list | tuple):
        return ", ".join(str(plain_value(item)) for item in value) or "—"
    return str(value) or "—"


@register.filter
def short(digest: str) -> str:
    """As much of a digest as people compare."""
    return digest[:12]


@register.simple_tag
def chart_groups(metrics: Iterable[Any]) -> list[tuple[ChartGroup, list[Any]]]:
    """Return each group of charts with the metrics whose charts are in sight."""
    first = [metric for metric in metrics if metric.is_first]
    return [(group, [metric for metric in first if metric.group == group]) for group in ChartGroup]


@register.filter
def parameters(count: int) -> str:
    """A number of parameters in millions or billions, as models are named by."""
    if count >= 10**9:
        return _("%(number)s billion") % {"number": number_format(count / 10**9, 1)}
    if count >= 10**6:
        return _("%(number)s million") % {"number": number_format(count / 10**6, 0)}
    return number_format(count, 0, force_grouping=True)


# Shares on the pages of the registry and of drift.

_WORSE, _CHANCE, _BETTER = 0.45, 0.55, 0.7


@register.filter
def percent(share: float | None, decimals: int = 1) -> str:
    """Return a share as percent, by default with one decimal; nothing for None."""
    return "" if share is None else f"{100 * share:.{decimals}f} %"


@register.filter
def agreement_shade(share: float) -> str:
    """The class of a cell: below chance, about chance, above, far above."""
    if share < _WORSE:
        return "shade-worse"
    if share <= _CHANCE:
        return "shade-chance"
    return "shade-better" if share < _BETTER else "shade-best"
