"""Saved views of a project's tables, and queues: comparisons of a view that are assigned to one member."""

from django.conf import settings
from django.db import models
from django.db.models import Q


class SavedView(models.Model):
    """A table with filters, conditions, search, order and columns, under a name. Its owner changes it."""

    # No index of its own: the constraint below begins with it.
    project = models.ForeignKey(
        "annotation.Project", on_delete=models.CASCADE, related_name="saved_views", db_index=False
    )
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="saved_views")
    name = models.CharField(max_length=120)
    table = models.CharField(max_length=20, help_text="Name of the table.")
    query = models.TextField(
        blank=True, help_text="What its address holds: filters, conditions, order, columns."
    )
    is_shared = models.BooleanField(default=False, help_text="All managers of the project see it.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name", "id"]
        constraints = [
            models.UniqueConstraint(fields=["project", "owner", "name"], name="saved_view_name_once"),
            models.CheckConstraint(condition=~Q(name=""), name="saved_view_has_name"),
        ]

    def __str__(self) -> str:
        return self.name


class ViewQueue(models.Model):
    """The comparisons that a view had when it was assigned to a member.

    Until they are done the member gets these comparisons alone. Written by
    `annotation.services.saved_views`.
    """

    project = models.ForeignKey(
        "annotation.Project", on_delete=models.CASCADE, related_name="view_queues", db_index=False
    )
    view = models.ForeignKey(
        SavedView, on_delete=models.SET_NULL, null=True, blank=True, related_name="queues"
    )
    name = models.CharField(max_length=120, help_text="That of the view when it was assigned.")
    member = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="view_queues")
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["project", "-id"], name="view_queue_of_project"),
            # For whoever asks for work: the queues that are theirs now.
            models.Index(
                fields=["member", "project", "id"],
                condition=Q(ended_at__isnull=True),
                name="view_queue_of_member",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} for {self.member}"


class QueuedComparison(models.Model):
    """One comparison of a queue."""

    # No index of its own: the constraint below begins with it.
    queue = models.ForeignKey(ViewQueue, on_delete=models.CASCADE, related_name="queued", db_index=False)
    comparison = models.ForeignKey(
        "annotation.Comparison", on_delete=models.CASCADE, related_name="queued_in"
    )
    is_opened = models.BooleanField(
        default=False,
        help_text="It had all its annotations: one more place was opened for the member.",
    )

    class Meta:
        constraints = [models.UniqueConstraint(fields=["queue", "comparison"], name="queued_comparison_once")]

    def __str__(self) -> str:
        return f"{self.comparison} in {self.queue}"
