"""A round's recipe: changed as long as it may be, its rewards resolved into what the trainer needs."""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.models import Project, RubricVersion, User
from annotation.selectors.rubrics import published_versions
from annotation.services import audit
from training.choices import CAN_START, CheckpointKind, RoundState, RunState, StepKind
from training.contract.checkpoint import manifest_digest
from training.contract.methods.common import BASE, PARENT
from training.contract.methods.policy import (
    KtoSettings,
    PolicyGradientSettings,
    PreferenceSettings,
    RewardPart,
    SftSettings,
)
from training.engine import base_of
from training.models import Checkpoint, Judge, Round, Run
from training.recipe.recipe import ROUND_REWARD_MODEL, ComputeSettings, PolicySettings, Recipe
from training.selectors.projects import checkpoints_of
from training.selectors.rubrics import rubric_of
from training.services.checkpoint_files import require_registered
from training.services.checkpoints import register_checkpoint
from training.services.rounds.base_choice import other_base, refuse_other_base
from training.services.runs.clusters import LOCAL, cluster_place, resources_of
from training.services.runs.files import of_finished

# ── Rubrics and AI annotators that a recipe names ──
#
# A reward of kind rubric has the options `rubric`, the name of a published rubric, and `judge`, the name of
# an AI annotator whose server and model score; or `model` and `url` instead. A run's spec holds the
# version.


def with_rubric(project: Project, part: RewardPart) -> RewardPart:
    """Return the reward with the published version and the judge's server in place of their names.

    Refuses names that the project does not have.
    """
    if part.kind != "rubric":
        return part
    for problem in unknown_rubric(project, part):
        raise Refusal("recipe_invalid", problem, field="recipe")
    options: dict[str, Any] = dict(part.options)
    version = _version(project, options["rubric"])
    if version is not None:
        rubric = dataclasses.asdict(rubric_of(version))
        options["rubric"] = {**rubric, "criteria": list(rubric["criteria"])}
    judge = _judge(project, options.pop("judge", None))
    if judge is not None:
        checkpoint = judge.checkpoint
        url = base_of(checkpoint.server_url) if checkpoint.server_url else settings.RONDO_MODEL_SERVER_URL
        options = {"url": url, "model": checkpoint.server_model or checkpoint.name, **options}
    return dataclasses.replace(part, options=options)


def unknown_rubric(project: Project, part: RewardPart) -> Iterator[str]:
    """Yield why a reward by a rubric is refused: a name that the project does not have, or no model."""
    if part.kind != "rubric":
        return
    rubric, judge = part.options.get("rubric"), part.options.get("judge")
    if not isinstance(rubric, dict) and _version(project, rubric) is None:
        yield _(
            "The reward %(part)s names the rubric %(name)s, which the project has not published. Publish it, "
            "or name another."
        ) % {"part": part.name, "name": rubric or "–"}
    if judge is not None and _judge(project, judge) is None:
        yield _("The reward %(part)s names %(name)s, which is no AI annotator of the project.") % {
            "part": part.name,
            "name": judge,
        }
    if judge is None and "model" not in part.options:
        yield _("The reward %(part)s needs the option judge, the name of an AI annotator, or model.") % {
            "part": part.name
        }


def _version(project: Project, name: object) -> RubricVersion | None:
    if not isinstance(name, str):
        return None
    return published_versions(project).filter(rubric__name=name).prefetch_related("criteria").first()


def _judge(project: Project, name: object) -> Judge | None:
    if not isinstance(name, str):
        return None
    return project.judges.select_related("checkpoint").filter(name=name).first()


# ── Folders of reward models and of the reference ──


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


def with_guard(policy: PolicySettings, compute: ComputeSettings) -> PolicySettings:
    """Return the settings without a guard where it cannot work: all weights are trained, or the trainer's
    files reach this installation through a store alone, so that nobody could answer."""
    if not isinstance(policy, PolicyGradientSettings) or policy.guard is None:
        return policy
    is_apart = resources_of(compute)["launcher"] != LOCAL and not cluster_place().shares_files
    return dataclasses.replace(policy, guard=None) if is_apart or policy.adapter != "lora" else policy


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


# ── Changes of a recipe ──


CAN_CHANGE = (RoundState.DRAFT, *CAN_START)
"""States in which a recipe may change: what a round trained with is part of its record."""


def change_recipe(*, round_: Round, recipe: Recipe, actor: User) -> list[str]:
    """Give a round another recipe and return the paths of what changed; none leaves all as it was.

    What concerns answers holds for those that are not asked for yet. Written to the audit log. Refuses
    once training has begun, and a reward of groups that the model server would have to score by.
    """
    with transaction.atomic():
        locked = Round.objects.select_for_update().get(pk=round_.pk)
        if locked.state not in CAN_CHANGE:
            raise Refusal(
                "recipe_fixed",
                _(
                    "%(round)s is %(state)s: its recipe cannot change any more. Change that of "
                    "the next round."
                ),
                round=round_,
                state=locked.get_state_display(),
            )
        for problem in served_groups(locked, recipe.policy):
            raise Refusal("recipe_invalid", problem, field="recipe")
        before, after = locked.parsed_recipe.to_json(), recipe.to_json()
        if locked.names_trl:
            before["trainer"] = "trl"
        changed = sorted(_differences(before, after))
        if changed:
            Round.objects.filter(pk=round_.pk).update(recipe=after)
            audit.record(
                action="round.recipe",
                subject=round_,
                actor=actor,
                project=round_.project,
                details={"changed": changed},
            )
    round_.refresh_from_db()
    return changed


def _differences(before: Any, after: Any, path: str = "") -> list[str]:
    if isinstance(before, Mapping) and isinstance(after, Mapping) and before and after:
        return [
            difference
            for name in sorted({*before, *after})
            for difference in _differences(
                before.get(name), after.get(name), f"{path}.{name}" if path else name
            )
        ]
    # What was decoded from JSON has lists where a recipe has tuples.
    same = _plain(before) == _plain(after)
    return [] if same else [path]


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return value
