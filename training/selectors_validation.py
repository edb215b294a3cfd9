"""Validation of reward models. Reads only."""

from training.choices import CheckpointKind
from training.contract import RewardModelValidation, validation_from_figures
from training.models import Checkpoint


def reward_model_validation(checkpoint: Checkpoint) -> RewardModelValidation | None:
    """Return the held-out figures of a reward model; None for a policy and where no pair was held out."""
    if checkpoint.kind != CheckpointKind.REWARD:
        return None
    return validation_from_figures(checkpoint.manifest.get("metrics") or {})
