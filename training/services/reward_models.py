"""Which folders the reward models lie in that a recipe's policy is trained for."""

import dataclasses
import os
from pathlib import Path

from django.conf import settings

from annotation.errors import Refusal
from training.choices import CheckpointKind, RunState, StepKind
from training.contract import (
    PolicyGradientSettings,
    RewardPart,
    manifest_digest,
)
from training.models import Checkpoint, Round, Run
from training.recipe import ROUND_REWARD_MODEL, PolicySettings
from training.selectors import checkpoints_of
from training.services.run_files import of_finished
from training.services.verification import require_registered


def with_reward_models(round_: Round, policy: PolicySettings) -> PolicySettings:
    """The settings with the folder and the digest of each reward model in place of the name that a recipe
    gives it. Refuses a round whose own reward model is not trained yet, and a name that the project's
    reward models do not bear."""
    if not isinstance(policy, PolicyGradientSettings):
        return policy
    watch = dataclasses.replace(
        policy.watch, held_out=tuple(_placed(round_, part) for part in policy.watch.held_out)
    )
    rewards = tuple(_placed(round_, part) for part in policy.rewards)
    return dataclasses.replace(policy, rewards=rewards, watch=watch)


def _placed(round_: Round, part: RewardPart) -> RewardPart:
    if part.checkpoint is None:
        return part
    folder = _folder(round_, part.checkpoint, part.name)
    return dataclasses.replace(
        part,
        # Relative to any run's folder, so that the folder of all of them can be moved as one.
        checkpoint=os.path.relpath(folder, Path(settings.RONDO_RUNS) / "run"),
        checkpoint_digest=manifest_digest(folder),
    )


def _folder(round_: Round, name: str, part: str) -> Path:
    if name == ROUND_REWARD_MODEL:
        run = Run.objects.filter(
            round_step__round=round_,
            round_step__kind=StepKind.TRAIN_REWARD_MODEL,
            state=RunState.FINISHED,
        ).first()
        if run is None:
            raise Refusal(
                f"The reward {part!r} is the reward model of {round_}, which is not trained yet. Start the "
                "round again."
            )
        return of_finished(run)
    found = (
        checkpoints_of(round_.project, writing=False).filter(kind=CheckpointKind.REWARD, name=name).first()
    )
    if found is None:
        names = ", ".join(_names(round_)) or "none"
        raise Refusal(
            f"The reward {part!r} names {name!r}, which is no reward model of {round_.project}: take "
            f"{ROUND_REWARD_MODEL!r}, the one that the round trains, or one of these: {names}."
        )
    require_registered(found)
    return found.path


def _names(round_: Round) -> list[str]:
    checkpoints: list[Checkpoint] = list(checkpoints_of(round_.project, writing=False).order_by("name"))
    return [checkpoint.name for checkpoint in checkpoints]
