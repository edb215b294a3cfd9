"""A run's last evaluation for display: figures with intervals, and reliability diagrams.

Reads the trainer's output; uses no database and no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from annotation.statistics.plots import Axis
from training.contract import EvaluationReport
from training.figures.baselines import BASELINE_FIGURES

_PREFIX = "held_out_"
# A diagram is a square that begins at one half, the least probability of a pair's favourite.
_SAID = Axis(start=0.5, end=1.0, length=200.0)
_SEEN = Axis(start=1.0, end=0.0, length=200.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
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
    figures: tuple[Figure, ...]
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


def figures_of(values: Mapping[str, float | None]) -> tuple[Figure, ...]:
    """Return figures by name, each with its bounds `…_low` and `…_high`."""
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
