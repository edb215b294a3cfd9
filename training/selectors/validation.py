"""Validation of reward models."""

from dataclasses import dataclass

from annotation.agreement.selection import Selection
from annotation.statistics.cached import last_report_of
from training.choices import CheckpointKind, Method, StepKind
from training.contract import (
    BASELINES_KEY,
    EvaluationReport,
    RewardModelValidation,
    validation_from_figures,
)
from training.figures.baselines import Baselines, baselines_of
from training.figures.people import People, people_of
from training.models import Checkpoint, Round, Run
from training.selectors.evaluations import evaluator_of


def reward_model_validation(checkpoint: Checkpoint) -> RewardModelValidation | None:
    """Return the held-out figures of a reward model; None for a policy and without held-out pairs."""
    if checkpoint.kind != CheckpointKind.REWARD:
        return None
    return validation_from_figures(checkpoint.manifest.get("metrics") or {})


def run_validation(run: Run, report: EvaluationReport | None) -> RewardModelValidation | None:
    """Return the validation in the last evaluation of a reward model's run; None for another method."""
    if run.method != Method.REWARD or report is None:
        return None
    return validation_from_figures(report.figures)


def run_baselines(run: Run, report: EvaluationReport | None) -> Baselines | None:
    """Return the baselines of a reward model's run, beside the agreement of people as computed last."""
    if run.method != Method.REWARD or report is None or BASELINES_KEY not in report.details:
        return None
    return baselines_of(report, last_report_of(run.snapshot.project, Selection()))


def run_people(run: Run, report: EvaluationReport | None) -> People | None:
    """Return groups, drift and reliability of a reward model's run; None for another method."""
    return people_of(report) if run.method == Method.REWARD else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluator:
    """The reward model that evaluates a round's new policy."""

    checkpoint: Checkpoint
    is_second: bool
    """True if it was trained on separate judgments, unseen by the policy."""
    validation: RewardModelValidation | None


def round_evaluator(round_: Round) -> Evaluator | None:
    """Return the reward model that evaluates a round; None before it is registered."""
    checkpoint = evaluator_of(round_)
    if checkpoint is None:
        return None
    step = checkpoint.run.round_step if checkpoint.run else None
    return Evaluator(
        checkpoint=checkpoint,
        is_second=step is not None and step.kind == StepKind.TRAIN_EVALUATOR,
        validation=reward_model_validation(checkpoint),
    )
