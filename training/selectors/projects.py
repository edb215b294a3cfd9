"""Reads of the training pages."""

from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.db.models import Case, Min, Prefetch, Q, QuerySet, When

from annotation.choices import Role, Verdict
from annotation.models import Candidate, Completion, Judgment, Project, User
from training.choices import WRITES_TEXT, CheckpointKind
from training.models import Checkpoint, Snapshot
from training.selectors.chats import chat_of

_LONGEST_LINEAGE = 50


def managed_projects(user: User | AnonymousUser) -> QuerySet[Project]:
    """Return the complete projects whose training pages `user` may see; all of them for a superuser."""
    if not user.is_authenticated:
        return Project.objects.none()
    complete = Project.objects.filter(is_incomplete=False).order_by("name")
    if user.is_superuser:
        return complete
    return complete.filter(memberships__user=user, memberships__role=Role.MANAGER)


def checkpoints_for(user: User | AnonymousUser) -> QuerySet[Checkpoint]:
    """Return the checkpoints of the projects that `user` manages, and the starter models."""
    projects = managed_projects(user)
    if not projects.exists():
        return Checkpoint.objects.none()
    return Checkpoint.objects.filter(Q(project__isnull=True) | Q(project__in=projects)).order_by("-pk")


def checkpoints_of(project: Project, *, writing: bool) -> QuerySet[Checkpoint]:
    """Return the checkpoints comparable in a project: those that write text, or the reward models."""
    kinds = WRITES_TEXT if writing else (CheckpointKind.REWARD,)
    return Checkpoint.objects.filter(
        Q(project=project)
        | Q(project__isnull=True, rounds__project=project)
        | Q(kind=CheckpointKind.STARTER, base__projects__project=project),
        kind__in=kinds,
        files_deleted_at__isnull=True,
    ).distinct()


def responding_checkpoints(project: Project) -> QuerySet[Checkpoint]:
    """Return the checkpoints that may talk with people of a project: its own that write text, and every base
    model."""
    bases = Q(kind=CheckpointKind.STARTER, project__isnull=True, files_deleted_at__isnull=True)
    return Checkpoint.objects.filter(bases | Q(pk__in=checkpoints_of(project, writing=True).values("pk")))


def comparable_checkpoints(project: Project, user: User | AnonymousUser) -> QuerySet[Checkpoint]:
    """Return the checkpoints that a manager may compare in a project: its own, those of the other projects
    that they manage, and every base model."""
    project_checkpoints = checkpoints_of(project, writing=True).values("pk")
    others = checkpoints_for(user).filter(kind__in=WRITES_TEXT, files_deleted_at__isnull=True).values("pk")
    of_this = Case(When(pk__in=project_checkpoints, then=0), default=1)
    return Checkpoint.objects.filter(Q(pk__in=project_checkpoints) | Q(pk__in=others)).order_by(
        of_this, "-pk"
    )


def lineage_of(checkpoint: Checkpoint) -> list[Checkpoint]:
    """Return a checkpoint's ancestors, nearest first."""
    line: list[Checkpoint] = []
    ancestor = checkpoint.parent
    while ancestor is not None and len(line) < _LONGEST_LINEAGE:
        line.append(ancestor)
        ancestor = ancestor.parent
    return line


def judgments_in(snapshot: Snapshot) -> QuerySet[Judgment]:
    """Return the judgments of a snapshot, prepared for a list."""
    candidates = Candidate.objects.select_related("completion__source").order_by("index")
    return (
        snapshot.judgments.select_related("annotator", "comparison__prompt")
        .prefetch_related("ranks", Prefetch("comparison__candidates", queryset=candidates))
        .order_by("pk")
    )


def judgments_of(completion: Completion) -> QuerySet[Judgment]:
    """Return the judgments that rank a completion, with its `rank`; None where they leave it unordered."""
    rank = Min("ranks__rank", filter=Q(ranks__completion=completion))
    return (
        Judgment.objects.filter(comparison__completions=completion)
        .annotate(rank=rank)
        .filter(Q(rank__isnull=False) | Q(verdict=Verdict.RANKED))
        .select_related("annotator")
        .order_by("pk")
    )


def placed_candidates(judgment: Judgment) -> list[tuple[Completion, int | None]]:
    """Return a judgment's completions with their ranks, best first, unranked last."""
    ranks = {place.completion_id: place.rank for place in judgment.ranks.all()}
    placed = [
        (candidate.completion, ranks.get(candidate.completion_id))
        for candidate in judgment.comparison.candidates.all()
    ]
    return sorted(placed, key=lambda pair: pair[1] if pair[1] is not None else len(placed) + 1)


def request_of(completion: Completion) -> dict[str, Any] | None:
    """Return the model server's request that reproduces this completion; None if there is none."""
    checkpoint = getattr(completion.source, "checkpoint", None)
    if checkpoint is None or completion.seed is None:
        return None
    return {
        "model": checkpoint.name,
        "messages": chat_of(completion.prompt),
        "seed": completion.seed,
        **completion.sampling,
    }
