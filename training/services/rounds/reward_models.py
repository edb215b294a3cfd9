"""Folders of a recipe's reward models and of its reference, and the rubrics that its policy is trained by."""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from training.choices import CheckpointKind, RunState, StepKind
from training.contract import (
    BASE,
    PARENT,
    KtoSettings,
    PolicyGradientSettings,
    PreferenceSettings,
    RewardPart,
    SftSettings,
    manifest_digest,
)
from training.models import Checkpoint, Round, Run
from training.recipe import ROUND_REWARD_MODEL, PolicySettings
from training.selectors.projects import checkpoints_of
from training.services.registry.checkpoints import register_checkpoint
from training.services.registry.verification import require_registered
from training.services.rounds.base_choice import other_base, refuse_other_base
from training.services.rounds.rubric_rewards import with_rubric
from training.services.runs.run_files import of_finished

_Compared = PreferenceSettings | KtoSettings | PolicyGradientSettings


def with_reward_models(round_: Round, policy: PolicySettings) -> PolicySettings:
    """Return the settings with place and digest of the reference and of each reward model instead of the
    name that a recipe gives it, and with the published version of each rubric. Refuses a round whose own
    reward model is not trained yet, and a name that the project does not have.
    """
    if not isinstance(policy, SftSettings):
        policy = _with_reference(round_, policy)
    if not isinstance(policy, PolicyGradientSettings):
        return policy
    watch = dataclasses.replace(
        policy.watch, held_out=tuple(_placed(round_, part) for part in policy.watch.held_out)
    )
    rewards = tuple(_placed(round_, part) for part in policy.rewards)
    return dataclasses.replace(policy, rewards=rewards, watch=watch)


def unknown_reference(round_: Round, policy: PolicySettings) -> Iterator[str]:
    """Yield why the recipe's reference is refused: the project has no such policy."""
    name = PARENT if isinstance(policy, SftSettings) else policy.reference
    if name in (PARENT, BASE):
        return
    reference = checkpoints_of(round_.project, writing=True).filter(name=name).first()
    if reference is not None:
        yield from other_base(reference, round_.policy.base_model)
    else:
        yield _(
            "The recipe’s reference names %(name)s, which is no policy of the project: write parent, base, "
            "or the name of one."
        ) % {"name": name}


def served_groups(round_: Round, policy: PolicySettings) -> Iterator[str]:
    """Yield why a reward of groups is refused: the model server scores by it, since it is on another base."""
    if not isinstance(policy, PolicyGradientSettings):
        return
    of_groups = {
        part.checkpoint: part for part in policy.rewards_of_all if part.population.reward != "common"
    }
    reward_models = (
        checkpoints_of(round_.project, writing=False).filter(name__in=of_groups) if of_groups else ()
    )
    for checkpoint in reward_models:
        if checkpoint.base_model != round_.policy.base_model:
            yield _(
                "policy, rewards: the reward %(part)s is one of groups, and %(name)s is on the base "
                "%(base)s, so that the model server scores by it: set its population, reward to common."
            ) % {
                "part": of_groups[checkpoint.name].name,
                "name": checkpoint,
                "base": checkpoint.base_model,
            }


def _with_reference(round_: Round, policy: _Compared) -> _Compared:
    """Return the settings with the folder and the digest of the reference in place of its name."""
    if policy.reference in (PARENT, BASE):
        return policy
    for problem in unknown_reference(round_, policy):
        raise Refusal("recipe_invalid", problem, field="recipe")
    reference = checkpoints_of(round_.project, writing=True).get(name=policy.reference)
    refuse_other_base(reference, round_.policy.base_model)
    if reference.kind != CheckpointKind.POLICY:
        # A starter model is its base.
        return dataclasses.replace(policy, reference=BASE)
    require_registered(reference)
    folder = os.path.relpath(reference.path, Path(settings.RONDO_RUNS) / "run")
    return dataclasses.replace(policy, reference=folder, reference_digest=manifest_digest(reference.path))


def _placed(round_: Round, part: RewardPart) -> RewardPart:
    """Return the part with its reward model's place: a folder, or a name on the model server.

    The server scores where the reward model stands on another base than the policy, and where the recipe says
    so.
    """
    if part.checkpoint is None:
        return with_rubric(round_.project, part)
    reward_model = _reward_model(round_, part.checkpoint, part.name)
    if part.kind == "served" or reward_model.base_model != round_.policy.base_model:
        # The model server knows what is registered.
        known = (
            reward_model if isinstance(reward_model, Checkpoint) else register_checkpoint(run=reward_model)
        )
        return dataclasses.replace(part, kind="served", checkpoint=known.name, checkpoint_digest=known.digest)
    folder = reward_model.path if isinstance(reward_model, Checkpoint) else of_finished(reward_model)
    return dataclasses.replace(
        part,
        # Relative to any run's folder, so that the folder of all of them can be moved as one.
        checkpoint=os.path.relpath(folder, Path(settings.RONDO_RUNS) / "run"),
        checkpoint_digest=manifest_digest(folder),
    )


def _reward_model(round_: Round, name: str, part: str) -> Run | Checkpoint:
    """Return the run of the round's own reward model, or the checkpoint of an earlier one."""
    if name == ROUND_REWARD_MODEL:
        run = Run.objects.filter(
            round_step__round=round_,
            round_step__kind=StepKind.TRAIN_REWARD_MODEL,
            state=RunState.FINISHED,
        ).first()
        if run is None:
            raise Refusal(
                "reward_model_not_trained",
                _(
                    "The reward %(part)r is the reward model of %(round)s, which is not trained "
                    "yet. Start the round again."
                ),
                part=part,
                round=round_,
            )
        return run
    checkpoint = (
        checkpoints_of(round_.project, writing=False).filter(kind=CheckpointKind.REWARD, name=name).first()
    )
    if checkpoint is None:
        names = ", ".join(_names(round_)) or "none"
        raise Refusal(
            "unknown_reward_model",
            _(
                "The reward %(part)r names %(name)r, which is no reward model of %(project)s: "
                "take %(own)r, the one that the round trains, or one of these: %(names)s."
            ),
            part=part,
            name=name,
            project=round_.project,
            own=ROUND_REWARD_MODEL,
            names=names,
        )
    require_registered(checkpoint)
    return checkpoint


def _names(round_: Round) -> list[str]:
    checkpoints: list[Checkpoint] = list(checkpoints_of(round_.project, writing=False).order_by("name"))
    return [checkpoint.name for checkpoint in checkpoints]
