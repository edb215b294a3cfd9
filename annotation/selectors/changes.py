"""Bulk changes of a project that can be undone. Reads only."""

from django.db.models import QuerySet
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from annotation.models import BulkChange, Project
from annotation.models.changes import UNDONE_WITHIN

MOST_SHOWN = 5

LABELS: dict[str, str | Promise] = {
    "requeue": gettext_lazy("Re-queue"),
    "overlap": gettext_lazy("Raise overlap"),
    "priority": gettext_lazy("Set priority"),
    "close": gettext_lazy("Close"),
    "review": gettext_lazy("Send to review"),
    "release": gettext_lazy("Release from quarantine"),
    "quarantine": gettext_lazy("Quarantine"),
    "reserve": gettext_lazy("Assign"),
    "answer": gettext_lazy("Annotate"),
    "tag": gettext_lazy("Add tag"),
    "untag": gettext_lazy("Remove tag"),
    "delete": gettext_lazy("Delete comparisons"),
    "delete_prompts": gettext_lazy("Delete prompts"),
    "delete_responses": gettext_lazy("Delete responses"),
}
"""Action of a bulk change → its name for people."""

TABLE_OF = {
    "tag": "prompts",
    "untag": "prompts",
    "delete_prompts": "prompts",
    "delete_responses": "responses",
}
"""Action of a bulk change → the table of its rows; comparisons for all others."""


def changes_of(project: Project) -> QuerySet[BulkChange]:
    """Return the bulk changes of a project, the newest first, without what was before them."""
    return BulkChange.objects.filter(project=project).select_related("actor", "project").defer("before")


def undoable_changes(project: Project) -> QuerySet[BulkChange]:
    """Return the newest bulk changes of the last day that were not undone."""
    since = timezone.now() - UNDONE_WITHIN
    return (
        changes_of(project).filter(undone_at__isnull=True, created_at__gt=since).order_by("-pk")[:MOST_SHOWN]
    )
