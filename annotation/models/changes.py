"""Bulk changes of a project's data: what was before them, so that each can be undone for a day."""

from datetime import timedelta

from django.conf import settings
from django.db import models
from django.utils import timezone

UNDONE_WITHIN = timedelta(days=1)
"""For this long a bulk change can be undone."""


class BulkChange(models.Model):
    """One bulk action on rows of a table. Written by `annotation.services.changes`."""

    # No index of its own: the index below begins with it.
    project = models.ForeignKey(
        "annotation.Project", on_delete=models.CASCADE, related_name="bulk_changes", db_index=False
    )
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    action = models.CharField(max_length=20, help_text="As the audit log names it, without its first part.")
    value = models.CharField(max_length=250, blank=True, help_text="The value that the action took.")
    changed = models.PositiveIntegerField(help_text="Rows.")
    before = models.JSONField(default=list, help_text="Of each row its id and what an undo needs of it.")
    created_at = models.DateTimeField(auto_now_add=True)
    undone_at = models.DateTimeField(null=True, blank=True, editable=False)
    is_purged = models.BooleanField(
        default=False, help_text="What it deleted is gone for good, but for what the record keeps."
    )

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["project", "-id"], name="bulk_change_of_project")]

    def __str__(self) -> str:
        return f"{self.action} of {self.changed} rows"

    @property
    def can_be_undone(self) -> bool:
        """Return True for a day, unless it was undone."""
        return self.undone_at is None and timezone.now() - self.created_at < UNDONE_WITHIN
