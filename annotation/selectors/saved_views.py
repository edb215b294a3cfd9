"""Saved views that a person sees, and the queues of a project with their progress. Reads only."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count, Exists, OuterRef, Q, QuerySet

from annotation.choices import AssignmentState
from annotation.models import Assignment, Project, QueuedComparison, SavedView, User, ViewQueue

MOST_SHOWN = 100


def views_for(user: User, project: Project) -> QuerySet[SavedView]:
    """Return the views of a person and those that others share with the project."""
    return SavedView.objects.filter(Q(owner=user) | Q(is_shared=True), project=project).select_related(
        "owner", "project"
    )


def count_assigned(project: Project, member: User) -> int:
    """Return the number of comparisons in the queues of a member that have not ended.

    Not how many are left: with gold items in between, it would tell which of them are gold.
    """
    queued = QueuedComparison.objects.filter(
        queue__project=project, queue__member=member, queue__ended_at__isnull=True
    )
    return queued.values("comparison").distinct().count()


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueProgress:
    """A queue with the number of its comparisons and of those that its member submitted."""

    queue: ViewQueue
    total: int
    done: int


def queues_of(project: Project) -> QuerySet[ViewQueue]:
    """Return the queues of a project, the newest first."""
    return (
        ViewQueue.objects.filter(project=project).select_related("member", "view", "project").order_by("-pk")
    )


def progress_of_queues(queues: Sequence[ViewQueue]) -> list[QueueProgress]:
    """Return the progress of queues, in one query."""
    submitted = Assignment.objects.filter(
        comparison=OuterRef("queued__comparison"),
        annotator=OuterRef("member"),
        state=AssignmentState.SUBMITTED,
    )
    counts = {
        pk: (total, done)
        for pk, total, done in ViewQueue.objects.filter(pk__in=[queue.pk for queue in queues])
        .annotate(total=Count("queued"), done=Count("queued", filter=Exists(submitted)))
        .order_by()
        .values_list("pk", "total", "done")
    }
    return [
        QueueProgress(queue=queue, total=counts[queue.pk][0], done=counts[queue.pk][1]) for queue in queues
    ]
