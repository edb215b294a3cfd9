"""What the training pages show. Reads only."""

from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.db.models import Prefetch, Q, QuerySet

from annotation.choices import Role
from annotation.models import Candidate, Completion, Judgment, Project, User
from training.chats import chat_of
from training.choices import WRITES_TEXT, CheckpointKind
from training.models import Checkpoint, Snapshot

_LONGEST_LINEAGE = 50


def managed_projects(user: User | AnonymousUser) -> QuerySet[Project]:
    """The projects whose training pages `user` may see; all of them for a superuser."""
    if not user.is_authenticated:
        return Project.objects.none()
    if user.is_superuser:
        return Project.objects.order_by("name")
    return Project.objects.filter(memberships__user=user, memberships__role=Role.MANAGER).order_by("name")


def checkpoints_for(user: User | AnonymousUser) -> QuerySet[Checkpoint]:
    """Checkpoints of the projects that `user` manages, and the starter models."""
    projects = managed_projects(user)
    if not projects.exists():
        return Checkpoint.objects.none()
    return Checkpoint.objects.filter(Q(project__isnull=True) | Q(project__in=projects)).order_by("-pk")


def checkpoints_of(project: Project, *, writing: bool) -> QuerySet[Checkpoint]:
    """Checkpoints that can be compared in a project: those that write text, or the reward models."""
    kinds = WRITES_TEXT if writing else (CheckpointKind.REWARD,)
    return Checkpoint.objects.filter(
        Q(project=project) | Q(project__isnull=True, rounds__project=project),
        kind__in=kinds,
        files_deleted_at__isnull=True,
    ).distinct()


def lineage_of(checkpoint: Checkpoint) -> list[Checkpoint]:
    """The checkpoints from which this one was trained on, nearest first."""
    line: list[Checkpoint] = []
    ancestor = checkpoint.parent
    while ancestor is not None and len(line) < _LONGEST_LINEAGE:
        line.append(ancestor)
        ancestor = ancestor.parent
    return line


def judgments_in(snapshot: Snapshot) -> QuerySet[Judgment]:
    """The judgments of a snapshot with what a list of them shows."""
    candidates = Candidate.objects.select_related("completion__source").order_by("index")
    return (
        snapshot.judgments.select_related("annotator", "comparison__prompt")
        .prefetch_related("ranks", Prefetch("comparison__candidates", queryset=candidates))
        .order_by("pk")
    )


def placed_candidates(judgment: Judgment) -> list[tuple[Completion, int | None]]:
    """The completions of a judgment with their ranks, best first, those without a rank last."""
    ranks = {place.completion_id: place.rank for place in judgment.ranks.all()}
    placed = [
        (candidate.completion, ranks.get(candidate.completion_id))
        for candidate in judgment.comparison.candidates.all()
    ]
    return sorted(placed, key=lambda one: one[1] if one[1] is not None else len(placed) + 1)


def request_of(completion: Completion) -> dict[str, Any] | None:
    """The request to the model server that gives this very completion again; None where it cannot."""
    checkpoint = getattr(completion.source, "checkpoint", None)
    if checkpoint is None or completion.seed is None:
        return None
    return {
        "model": checkpoint.name,
        "messages": chat_of(completion.prompt),
        "seed": completion.seed,
        **completion.sampling,
    }
