"""Projects and models that a person may see: access, checkpoints to compare, system prompts."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.db.models import Case, Min, Prefetch, Q, QuerySet, When
from django.http import Http404

from annotation.choices import Role, Verdict
from annotation.models import Candidate, Completion, Judgment, Project, Prompt, User
from annotation.selectors.access import may, projects_for
from annotation.selectors.allocation import membership_of
from training.choices import WRITES_TEXT, CheckpointKind
from training.contract.snapshot import Message, Passage, with_context
from training.models import Checkpoint, Snapshot

# ── Chats and system prompts ──


def chat_of(prompt: Prompt) -> list[dict[str, str]]:
    """Return the chat that a model answers: the messages, with the context before the last question.

    Training and scoring build it in the same way.
    """
    return chat_with(prompt.messages, prompt.context)


def chat_with(
    messages: Sequence[Mapping[str, Any]], context: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    """Return messages as a chat, with the context before the last question."""
    chat = with_context(
        [Message(role=turn["role"], content=turn["content"]) for turn in messages],
        [Passage(title=passage["title"], sentences=tuple(passage["sentences"])) for passage in context],
    )
    return [{"role": turn.role, "content": turn.content} for turn in chat]


def system_of(messages: Sequence[Mapping[str, str]]) -> str:
    """Return the system prompt of a chat; empty without one."""
    return messages[0]["content"] if messages and messages[0]["role"] == "system" else ""


def with_system(messages: Sequence[Mapping[str, str]], system: str) -> list[dict[str, str]]:
    """Return a chat with another system prompt; an empty one leaves the chat as it is."""
    chat = [dict(turn) for turn in messages]
    if not system:
        return chat
    return [{"role": "system", "content": system}, *(turn for turn in chat if turn["role"] != "system")]


# ── Projects ──


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


# ── Models of other servers ──


def served_models(user: User) -> QuerySet[Checkpoint]:
    """Return checkpoints that write text and whose files exist: of projects that `user` manages, and of none.

    A mere annotator gets none: querying a checkpoint would reveal which answers it wrote.
    """
    return (
        checkpoints_for(user)
        .filter(kind__in=WRITES_TEXT, files_deleted_at__isnull=True)
        .select_related("project")
    )


# ── Access to pages whose address names no project ──


def require_manager(user: User, project: Project | None) -> None:
    """Let managers of `project` through; where it is None, managers of any project and superusers.

    An outsider gets 404 as if there were no such page, a member whose role is too low gets
    403: pages that tell what wrote an answer are closed to those who judge it.
    """
    if project is None:
        if user.is_superuser or managed_projects(user).exists():
            return
        if projects_for(user).exists():
            raise PermissionDenied
        raise Http404
    if may(user, project, Role.MANAGER):
        return
    if membership_of(user, project):
        raise PermissionDenied
    raise Http404
