"""How the training pages put states, times and digests."""

from django import template

from training.choices import RoundState, RunState, StepState

register = template.Library()

_STEP_MARKS = {
    StepState.WAITING: "waiting",
    StepState.RUNNING: "running",
    StepState.FINISHED: "done",
    StepState.FAILED: "failed",
    StepState.CANCELLED: "failed",
}
_BADGES = {
    RoundState.LABELLING: "accent",
    RoundState.TRAINING: "accent",
    RoundState.FAILED: "bad",
    RoundState.CANCELLED: "warn",
    RoundState.FINISHED: "good",
    RunState.STARTING: "accent",
    RunState.RUNNING: "accent",
    RunState.STOPPED: "warn",
}


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
def short(digest: str) -> str:
    """As much of a digest as people compare."""
    return digest[:12]
