"""Lists of a project's rounds and runs, and the accuracy of reward models by round."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count, Prefetch

from annotation.agreement.estimate import Estimate
from annotation.models import Project
from annotation.selectors.access import judgments_current
from annotation.selectors.cached_counts import cached
from annotation.statistics.plots import SHARE, Axis, PlottedInterval
from annotation.statistics.report import Report
from training.choices import StepKind
from training.contract import ContractError
from training.contract.run import EvaluationReport, read_evaluation
from training.figures.held_out import HeldOutFigure, figures_of
from training.files.shared import folder_of
from training.models import Evaluation, Round, RoundStep, Run

# ── Lists ──


HEADLINES = ("held_out_accuracy", "held_out_reward", "held_out_log_loss", "held_out_loss")
"""Held-out figures by which runs are compared; a list shows the first that a run has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRow:
    """A round in the list: annotations, and the outcome of its evaluation."""

    round: Round
    annotations: int
    evaluation: Evaluation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run in the list, with its headline figure."""

    run: Run
    headline: HeldOutFigure | None


def rounds_of_project(project: Project) -> list[RoundRow]:
    """Return a project's rounds, newest first; of a large one with slightly old counts. Three queries."""
    evaluations = Prefetch(
        "evaluations", Evaluation.objects.filter(finished_at__isnull=False).select_related("checkpoint")
    )
    counted = judgments_current(project).order_by().values_list("comparison__round_number")
    annotations = cached(lambda: dict(counted.annotate(Count("pk"))), "annotations by round", project.pk)
    rounds = project.rounds.select_related("policy").prefetch_related(evaluations).order_by("-number")
    return [
        RoundRow(
            round=round_,
            annotations=annotations.get(round_.number, 0),
            evaluation=next(iter(round_.evaluations.all()), None),
        )
        for round_ in rounds
    ]


def run_rows(runs: Sequence[Run]) -> list[RunRow]:
    """Return runs with the figures of their last evaluation. Reads one small file per run."""
    return [RunRow(run=run, headline=_headline(run)) for run in runs]


def _headline(run: Run) -> HeldOutFigure | None:
    report = run_evaluation(run)
    if report is None:
        return None
    name = next((name for name in HEADLINES if report.figures.get(name) is not None), None)
    if name is None:
        return None
    chosen = {key: value for key, value in report.figures.items() if key.startswith(name)}
    return next((figure for figure in figures_of(chosen)), None)


def run_evaluation(run: Run) -> EvaluationReport | None:
    """Return a run's last evaluation; None without one that can be read."""
    try:
        return read_evaluation(folder_of(run))
    except (ContractError, OSError):
        return None


# ── Accuracy of reward models ──


_ROUNDS = 6
_CEILING = "pair-percent"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundAccuracy:
    """The held-out accuracy of one round's reward model, and its place on the scale from 0 to 1."""

    round_number: int
    row: RunRow
    mark: PlottedInterval | None


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
