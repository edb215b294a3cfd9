"""The base model of a project: chosen by a manager, taken by the next round."""

from collections.abc import Iterator

from django.db import transaction
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.models import Project, User
from annotation.selectors import access
from annotation.services import audit
from training.choices import RoundState, StepKind
from training.models import BaseModel, Checkpoint, ProjectBase, Round
from training.selectors.base_models import base_of, trainable_bases
from training.services.checkpoints import register_starter


def first_policy(project: Project) -> Checkpoint:
    """Return the checkpoint that a project's first round begins from: its base, as it came."""
    base = base_of(project)
    return register_starter() if base is None else base.starter


def next_policy(project: Project, policy: Checkpoint) -> Checkpoint:
    """Return the checkpoint that a project's next round begins from.

    policy: the checkpoint that it would go on with. Another base that was chosen meanwhile begins as it came:
    an adapter fits the base alone that it was trained on.
    """
    choice = ProjectBase.objects.filter(project=project).select_related("base").first()
    if choice is None or policy.base_id == choice.base_id:
        return policy
    return choice.base.starter


def choose_base(*, project: Project, base: BaseModel, chosen_by: User) -> None:
    """Have a project's next round begin from a base model; a round that is a draft takes it at once.

    Rounds that are open already go on as they are. Refuses a base model without files here, from which
    nothing can be trained.
    """
    access.refuse_unless_manager(chosen_by, project, "manager_chooses_base_model")
    if not base.has_files:
        raise Refusal(
            "base_model_not_trainable",
            _("%(name)s is on another server: nothing can be trained from it. Choose one with files here."),
            field="base_model",
            name=base,
        )
    with transaction.atomic():
        before = base_of(project)
        ProjectBase.objects.update_or_create(project=project, defaults={"base": base, "chosen_by": chosen_by})
        draft = Round.objects.filter(project=project, state=RoundState.DRAFT).exclude(policy__base=base)
        draft.update(policy=base.starter)
        if before != base:
            audit.record(
                action="project.base_model",
                subject=project,
                actor=chosen_by,
                project=project,
                details={"before": before.name if before else None, "after": base.name},
            )


def note_base_of(checkpoint: Checkpoint, project: Project) -> None:
    """Take a round's new policy for the project's choice, where the project has one."""
    if checkpoint.base_id is not None:
        ProjectBase.objects.filter(project=project).update(base=checkpoint.base_id)


def reward_base_of(round_: Round) -> str:
    """Return the name of the base model that a round's reward models are trained on."""
    return round_.parsed_recipe.reward_base or round_.policy.base_model


def base_of_run(round_: Round, kind: StepKind) -> str:
    """Return the name of the base model that a training step trains."""
    return round_.policy.base_model if kind == StepKind.TRAIN_POLICY else reward_base_of(round_)


def unknown_reward_base(round_: Round) -> Iterator[str]:
    """Yield why the recipe's base of the reward model is refused: it is not here to be trained."""
    name = reward_base_of(round_)
    if name == round_.policy.base_model or trainable_bases().filter(name=name).exists():
        return
    yield _(
        "The recipe’s reward_base names %(name)s, which is no base model with files here: name one of the "
        "base models, or leave it empty for that of the policy."
    ) % {"name": name}


def other_base(checkpoint: Checkpoint, base_model: str) -> Iterator[str]:
    """Yield why a checkpoint cannot be the reference of a run: it stands on another base model."""
    if checkpoint.base_model != base_model:
        yield _(
            "%(name)s stands on %(other)s and cannot be the reference of a run on %(base)s: choose a "
            "checkpoint of that base."
        ) % {"name": checkpoint, "other": checkpoint.base_model, "base": base_model}


def refuse_other_base(checkpoint: Checkpoint, base_model: str) -> None:
    """Refuse a checkpoint that stands on another base than the one that is trained."""
    for problem in other_base(checkpoint, base_model):
        raise Refusal("recipe_invalid", problem, field="recipe")
