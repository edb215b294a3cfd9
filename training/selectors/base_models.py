"""Base models as pages and the API show them."""

from datetime import timedelta

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from annotation.choices import JobState
from annotation.models import Completion, Project, User
from training.choices import BaseOrigin, CheckpointKind
from training.models import BaseModel, BaseModelAddition, Judge, ProjectBase, Round
from training.selectors.projects import managed_projects

_ADDITIONS_SHOWN = 10


def bases_for(user: User | AnonymousUser) -> QuerySet[BaseModel]:
    """Return the base models that a manager may see: all but those of servers for another project alone."""
    projects = managed_projects(user)
    if not projects.exists() and not user.is_superuser:
        return BaseModel.objects.none()
    of_others = BaseModel.objects.filter(
        origin=BaseOrigin.SERVER, checkpoints__kind=CheckpointKind.STARTER
    ).exclude(Q(checkpoints__project__isnull=True) | Q(checkpoints__project__in=projects))
    return BaseModel.objects.exclude(pk__in=of_others.values("pk")).select_related("created_by")


def trainable_bases() -> QuerySet[BaseModel]:
    """Return the base models that a project may choose: those with files here."""
    return BaseModel.objects.exclude(origin=BaseOrigin.SERVER)


def base_of(project: Project) -> BaseModel | None:
    """Return the base model of a project's next round: its choice, that of its newest round, the default.

    None before the default is registered.
    """
    choice = ProjectBase.objects.filter(project=project).select_related("base").first()
    if choice is not None:
        return choice.base
    newest = Round.objects.filter(project=project, policy__base__isnull=False).order_by("-number")
    if round_ := newest.select_related("policy__base").first():
        return round_.policy.base
    return BaseModel.objects.filter(name=settings.RONDO_STARTER_MODEL_NAME).first()


def additions_shown() -> list[BaseModelAddition]:
    """Return the additions that go on, and those that failed in the last day, newest first."""
    going_on = Q(state__in=(JobState.WAITING, JobState.RUNNING))
    failed = Q(state=JobState.FAILED, finished_at__gt=Now() - timedelta(days=1))
    rows = BaseModelAddition.objects.filter(going_on | failed)
    return list(rows.select_related("created_by", "base")[:_ADDITIONS_SHOWN])


def uses_of_base(base: BaseModel) -> list[str]:
    """Return why a base model cannot be removed, in words; empty where nothing needs it."""
    trained = base.checkpoints.exclude(kind=CheckpointKind.STARTER)
    uses = [f"checkpoint {checkpoint}" for checkpoint in trained[:3]]
    uses += [
        f"project {choice.project}, which chose it" for choice in base.projects.select_related("project")
    ]
    uses += [str(round_) for round_ in Round.objects.filter(policy__base=base).select_related("project")[:3]]
    starter = base.checkpoints.filter(kind=CheckpointKind.STARTER).first()
    if starter is None:
        return uses
    uses += [f"AI annotator {judge}" for judge in Judge.objects.filter(checkpoint=starter)[:3]]
    if Completion.objects.filter(source=starter.source).exists():
        uses.append("responses that it wrote")
    return uses


def same_tokenizer(*bases: BaseModel | None) -> bool:
    """Return whether all of these share one tokenizer, so that per-token figures of them compare.

    Unknown tokenizers are those of one base alone.
    """
    return len({_tokens(base) for base in bases}) <= 1


def _tokens(base: BaseModel | None) -> str:
    if base is None:
        return ""
    return base.tokenizer_digest or f"base {base.pk}"
