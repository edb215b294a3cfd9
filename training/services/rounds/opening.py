"""A round begins: drafted, opened for sampling, started to train."""

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.models import Project, User
from annotation.selectors.access import judgments_current
from annotation.services import audit
from annotation.services.jobs.messages import send_after_commit
from training.choices import CAN_START, RoundState, StepKind, StepState, TaskName
from training.models import Round, RoundStep
from training.recipe import default_recipe
from training.services.evaluation.evaluators import trains_evaluator
from training.services.jobs.events import tell_of_round
from training.services.registry.chat_templates import untrainable_template
from training.services.rounds.base_choice import first_policy
from training.services.rounds.dry_run import refuse_unless_fits
from training.services.rounds.transitions import TRAINING_STEPS, alone_in_training, move, unfinished
from training.services.snapshots import refuse_unless_learnable


def draft_first_round(
    *, project: Project, created_by: User | None, recipe: Mapping[str, Any] | None = None
) -> Round:
    """Write down a project's first round, whose recipe may still change; nothing is sampled yet.

    Idempotent: a project that has its first round keeps it as it is.
    """
    with transaction.atomic():
        round_, created = Round.objects.get_or_create(
            project=project,
            number=1,
            defaults={
                "policy": first_policy(project),
                "recipe": recipe or default_recipe(),
                "created_by": created_by,
            },
        )
        if created:
            tell_of_round(round_, RoundState.DRAFT)
            audit.record(action="round.draft", subject=round_, actor=created_by, project=project)
    return round_


def open_round(*, round_: Round, opened_by: User | None) -> None:
    """Let a draft's policy answer its prompts. A worker is told after the commit.

    Comparisons appear as answers come. Refuses a round that is no draft any more, and one whose responses
    could be judged and not trained on.
    """
    for problem in untrainable_template(round_.policy):
        raise Refusal("recipe_invalid", problem, field="recipe")
    with transaction.atomic():
        if not move(round_, RoundState.SAMPLING, sources=(RoundState.DRAFT,)):
            raise Refusal(
                "round_not_draft", _("%(round)s is no draft any more: it was opened already."), round=round_
            )
        RoundStep.objects.get_or_create(round=round_, position=0, defaults={"kind": StepKind.ANSWER_PROMPTS})
        audit.record(action="round.open", subject=round_, actor=opened_by, project=round_.project)
        send_after_commit(TaskName.ADVANCE_ROUND, round_.pk)
    round_.refresh_from_db()


def open_first_round(
    *, project: Project, started_by: User | None = None, recipe: Mapping[str, Any] | None = None
) -> Round:
    """Draft and open a project's first round at once: the starter model is to answer its prompts.

    Idempotent.
    """
    # Checked here once, so that no transaction waits for the check below: its result is stored.
    list(untrainable_template(first_policy(project)))
    with transaction.atomic():
        round_ = draft_first_round(project=project, created_by=started_by, recipe=recipe)
        if round_.state == RoundState.DRAFT:
            open_round(round_=round_, opened_by=started_by)
    return round_


def start_round(*, round_: Round, started_by: User | None, despite_memory: bool = False) -> None:
    """Start training on the judgments of now. A worker is told after the commit.

    `started_by` is None where the recipe's trigger starts it. Refuses a round that is not in
    sampling or labelling, a project that trains already, judgments from which nothing can be
    learnt, and a recipe whose runs cannot fit into the memory of any worker that trains. With
    `despite_memory` an administrator lets these start all the same, which the audit log records.
    Ends the answering of prompts that still goes on: the machine is needed for training, and what
    is not labelled yet cannot be learnt from.
    """
    refuse_unless_learnable(
        round_.project,
        range(1, round_.number + 1),
        ai_feedback=round_.parsed_recipe.ai_feedback,
        first_passes=round_.parsed_recipe.first_passes,
    )
    if despite_memory and not (started_by and started_by.is_superuser):
        raise Refusal(
            "administrator_starts_large_training",
            _("Only an administrator may start training that does not fit into memory."),
        )
    overridden = refuse_unless_fits(round_, despite_memory=despite_memory)
    with alone_in_training(round_):
        has_moved = move(
            round_,
            RoundState.TRAINING_REWARD_MODELS,
            sources=CAN_START,
            started_at=Now(),
            started_by=started_by,
            cancel_requested=False,
            pause_requested=False,
        )
        if not has_moved:
            raise Refusal(
                "round_not_labelling",
                _("%(round)s is not in labelling any more: look at where it is now."),
                round=round_,
            )
        unfinished(round_).filter(position=0).update(
            state=StepState.CANCELLED,
            worker="",
            heartbeat_at=None,
            message="ended when training started; what was answered stands",
            finished_at=Now(),
        )
        RoundStep.objects.bulk_create(
            RoundStep(round=round_, position=position, kind=kind)
            for position, kind in enumerate(_training_steps(round_), start=1)
        )
        audit.record(
            action="round.start",
            subject=round_,
            actor=started_by,
            project=round_.project,
            details={
                "judgments": judgments_current(round_.project, [round_.number]).count(),
                **({"despite_memory": overridden} if overridden else {}),
            },
        )
        send_after_commit(TaskName.ADVANCE_ROUND, round_.pk)
    round_.refresh_from_db()


def _training_steps(round_: Round) -> list[StepKind]:
    second = trains_evaluator(round_)
    return [kind for kind in TRAINING_STEPS if second or kind != StepKind.TRAIN_EVALUATOR]
