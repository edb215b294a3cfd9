"""Audit log: every action with its actor and time."""

from django.conf import settings
from django.db import models

from annotation.models.written_once import WrittenOnce


class AuditEntry(WrittenOnce):
    """One deed that somebody answers for. Written by `annotation.services.audit.record` alone.

    Triggers of the database refuse every UPDATE and DELETE, of whatever program, with two exceptions:
    `project` becomes empty when the project is deleted, and the words (`subject`, `details`) may be replaced
    where `redacted_at` moves on with them (`annotation.services.people.accounts.erase_account`).
    """

    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="audit_entries",
        help_text="Who did it; none where Rondo did it by itself.",
    )
    project = models.ForeignKey(
        "annotation.Project",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="audit_entries",
        help_text="Where; none for what belongs to no project.",
    )
    action = models.CharField(
        max_length=60, help_text="What was done, as `round.start` or `checkpoint.delete`."
    )
    subject = models.CharField(max_length=200, help_text="To what: its name at that time.")
    subject_id = models.PositiveBigIntegerField(null=True, blank=True, help_text="Its key, where it has one.")
    details = models.JSONField(default=dict, blank=True, help_text="What else is worth knowing later.")
    created_at = models.DateTimeField(auto_now_add=True)
    redacted_at = models.DateTimeField(
        null=True, blank=True, help_text="When a name in its words was replaced, since that person left."
    )

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "audit entries"
        indexes = [
            models.Index(fields=["project", "-id"], name="audit_by_project"),
            models.Index(fields=["action", "-id"], name="audit_by_action"),
        ]

    def __str__(self) -> str:
        return f"{self.action}: {self.subject}"
