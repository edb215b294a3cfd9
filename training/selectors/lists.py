"""Lists of a project's rounds and runs, with their headline figures."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count, Prefetch

from annotation.models import Project
from annotation.selectors.access import judgments_current
from annotation.selectors.cached_counts import cached
from training.contract import ContractError, EvaluationReport, read_evaluation
from training.figures.held_out import Figure, figures_of
from training.files.run_folders import folder_of
from training.models import Evaluation, Round, Run

HEADLINES = ("held_out_accuracy", "held_out_reward", "held_out_log_loss", "held_out_loss")
"""Held-out figures by which runs are told apart; a list shows the first that a run has."""


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
    headline: Figure | None


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


def _headline(run: Run) -> Figure | None:
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
