"""Held-out accuracy of reward models by round, beside how often people agree with each other."""

from collections.abc import Sequence
from dataclasses import dataclass

from annotation.agreement.estimate import Estimate
from annotation.models import Project
from annotation.statistics.plots import SHARE, Axis, Interval
from annotation.statistics.report import Report
from training.choices import StepKind
from training.models import RoundStep
from training.selectors.lists import RunRow, run_rows

_ROUNDS = 6
_CEILING = "pair-percent"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundAccuracy:
    """The held-out accuracy of one round's reward model, and its place on the scale from 0 to 1."""

    round_number: int
    row: RunRow
    mark: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardAccuracy:
    """Reward models of the last rounds, oldest first, and the human ceiling."""

    rounds: tuple[RoundAccuracy, ...]
    ceiling: Estimate | None
    """Percent agreement of two annotators on a pair; None where nothing measures it."""


def reward_accuracy(project: Project, report: Report) -> RewardAccuracy:
    """Return the held-out accuracy of each round's reward model; rounds without one are left out."""
    ceiling = next((entry.estimate for entry in report.agreement if entry.key == _CEILING), None)
    if ceiling is not None and ceiling.value is None:
        ceiling = None
    axis = Axis(start=SHARE.start, end=SHARE.end, reference=0.5 if ceiling is None else ceiling.value or 0.5)
    return RewardAccuracy(rounds=tuple(_rounds(_steps(project), axis)), ceiling=ceiling)


def _steps(project: Project) -> list[RoundStep]:
    steps = (
        RoundStep.objects.filter(round__project=project, kind=StepKind.TRAIN_REWARD_MODEL, run__isnull=False)
        .select_related("round", "run")
        .order_by("-round__number", "pk")
    )
    newest: dict[int, RoundStep] = {}
    for step in steps[: 4 * _ROUNDS]:
        newest.setdefault(step.round_id, step)
    return list(newest.values())[:_ROUNDS][::-1]


def _rounds(steps: Sequence[RoundStep], axis: Axis) -> list[RoundAccuracy]:
    rows = run_rows([step.run for step in steps if step.run is not None])
    return [
        RoundAccuracy(
            round_number=step.round.number,
            row=row,
            mark=axis.interval(row.headline.value, row.headline.low, row.headline.high),
        )
        for step, row in zip(steps, rows, strict=True)
        if row.headline is not None and row.headline.title == "accuracy"
    ]
