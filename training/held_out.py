"""What a run's last evaluation found, ready to be shown: figures with intervals, and reliability diagrams.

Reads what the trainer wrote; knows no database and no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from training.contract import EvaluationReport

SIDE = 200
"""A diagram is drawn in a square of this side: probability to the right, observed share upwards."""
_PREFIX = "held_out_"
_LEAST = 0.5
"""A pair's favourite has at least this probability: the diagram begins there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One held-out figure, with its 95 % interval where the trainer gave one."""

    title: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Bin:
    """The pairs of which the model was about as sure: where their dot and their interval are drawn."""

    count: int
    said: float
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
    """How often the model was right where it was so sure."""

    head: str
    calibrated: bool
    """Whether the margins were divided by the temperature first."""
    bins: tuple[Bin, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """The evaluation of the state that is, or would be, the checkpoint."""

    step: int
    figures: tuple[Figure, ...]
    diagrams: tuple[Diagram, ...]


def held_out_of(report: EvaluationReport | None) -> HeldOut | None:
    """What there is to show of a report; None before the first evaluation and where nothing is held out."""
    if report is None or not report.figures:
        return None
    return HeldOut(
        step=report.step, figures=figures_of(report.figures), diagrams=tuple(_diagrams(report.details))
    )


def figures_of(values: Mapping[str, float | None]) -> tuple[Figure, ...]:
    """Figures by name, each with the bounds that stand beside it as `…_low` and `…_high`."""
    return tuple(
        Figure(
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
    found = []
    for head, parts in sorted(details.items()):
        for name, calibrated in (("reliability", False), ("reliability_calibrated", True)):
            if isinstance(parts, Mapping) and parts.get(name):
                found.append(Diagram(head=head, calibrated=calibrated, bins=_bins(parts[name])))
    return found


def _bins(values: Sequence[Mapping[str, Any]]) -> tuple[Bin, ...]:
    return tuple(
        Bin(
            count=one["count"],
            said=one["mean_probability"],
            seen=one["observed"],
            low=one["observed_low"],
            high=one["observed_high"],
            x=round((one["mean_probability"] - _LEAST) / (1 - _LEAST) * SIDE, 1),
            y=_height(one["observed"]),
            y_low=_height(one["observed_low"]),
            y_high=_height(one["observed_high"]),
        )
        for one in values
    )


def _height(share: float) -> float:
    return round((1 - share) * SIDE, 1)
