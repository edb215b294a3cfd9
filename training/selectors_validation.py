"""Validation of reward models. Reads only."""

from training.choices import CheckpointKind, Method, StepKind
from training.contract import EvaluationReport, RewardModelValidation, validation_from_figures
from training.models import Checkpoint, Round, Run
from training.selectors_evaluation import trained_by


def reward_model_validation(checkpoint: Checkpoint) -> RewardModelValidation | None:
    """Return the held-out figures of a reward model; None for a policy and where no pair was held out."""
    if checkpoint.kind != CheckpointKind.REWARD:
        return None
    return validation_from_figures(checkpoint.manifest.get("metrics") or {})


def run_validation(run: Run, report: EvaluationReport | None) -> RewardModelValidation | None:
    """Return the validation in the last evaluation of a reward model's run; None for another method."""
    if run.method != Method.REWARD or report is None:
        return None
    return validation_from_figures(report.figures)


def round_validation(round_: Round) -> RewardModelValidation | None:
    """Return the validation of the reward model that a round trained; None before it is registered."""
    checkpoint = trained_by(round_, CheckpointKind.REWARD, StepKind.TRAIN_REWARD_MODEL)
    return reward_model_validation(checkpoint) if checkpoint else None
