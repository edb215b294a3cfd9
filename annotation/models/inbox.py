"""Comments on a comparison, notifications, and each person's choice of e-mails."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from annotation.choices import MailState, NotificationKind

LONGEST_COMMENT = 5_000


class Comment(models.Model):
    """A message of a thread: between an annotator and the managers, or of the team on one comparison.

    The thread of an annotator belongs to an assignment, not to the comparison: no annotator sees what others
    wrote, and a comparison that is asked again (a retest) does not show its first thread. That of the team,
    which managers and reviewers see alone, belongs to the comparison. The talk of a calibration session,
    which its participants and managers see once it is revealed, belongs to the item. Written by
    `annotation.services.inbox` alone.
    """

    assignment = models.ForeignKey(
        "annotation.Assignment", on_delete=models.PROTECT, null=True, blank=True, related_name="comments"
    )
    comparison = models.ForeignKey(
        "annotation.Comparison",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="team_comments",
        help_text="Of a comment of the team.",
    )
    calibration_item = models.ForeignKey(
        "annotation.CalibrationItem",
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="comments",
        help_text="Of a comment in the talk of a calibration session.",
    )
    author = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="comments")
    text = models.TextField(help_text="Markdown.")
    created_at = models.DateTimeField(default=timezone.now)
    edited_at = models.DateTimeField(null=True, blank=True)
    resolved_at = models.DateTimeField(
        null=True, blank=True, help_text="When a manager or reviewer answered it, or marked it as resolved."
    )

    class Meta:
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(condition=~Q(text=""), name="comment_has_text"),
            models.CheckConstraint(
                condition=Q(assignment__isnull=True, comparison__isnull=False, calibration_item__isnull=True)
                | Q(assignment__isnull=False, comparison__isnull=True, calibration_item__isnull=True)
                | Q(assignment__isnull=True, comparison__isnull=True, calibration_item__isnull=False),
                name="comment_in_one_thread",
            ),
        ]
        indexes = [
            models.Index(fields=["assignment"], condition=Q(resolved_at__isnull=True), name="comment_open"),
        ]

    def __str__(self) -> str:
        return f"{self.author}: {self.text[:60]}"


class Notification(models.Model):
    """One notification in a person's inbox. Written by `annotation.services.inbox` alone.

    `key` names the event: telling of the same event twice leaves one row.
    """

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="notifications", db_index=False
    )
    project = models.ForeignKey("annotation.Project", on_delete=models.CASCADE, related_name="notifications")
    kind = models.CharField(max_length=30, choices=NotificationKind)
    key = models.CharField(max_length=100, help_text="Names the event, once per person.")
    subject = models.CharField(max_length=200, blank=True, help_text="Name of a round, job or person.")
    excerpt = models.CharField(max_length=300, blank=True, help_text="Beginning of a comment or an error.")
    address = models.CharField(max_length=300, help_text="Path of the page that it leads to.")
    created_at = models.DateTimeField(default=timezone.now)
    read_at = models.DateTimeField(null=True, blank=True)
    mail = models.CharField(max_length=10, choices=MailState, default=MailState.NONE, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["user", "key"], name="notification_once"),
            models.CheckConstraint(
                condition=Q(kind__in=NotificationKind.values), name="notification_kind_known"
            ),
            models.CheckConstraint(condition=Q(mail__in=MailState.values), name="notification_mail_known"),
        ]
        indexes = [
            models.Index(fields=["user", "-id"], name="notification_by_user"),
            models.Index(fields=["user"], condition=Q(read_at__isnull=True), name="notification_unread"),
            models.Index(fields=["id"], condition=Q(mail="waiting"), name="notification_mail_waiting"),
        ]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {self.subject} for {self.user}"


class MailChoice(models.Model):
    """The e-mails that one person wants. Without a row the defaults hold."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="mail_choice"
    )
    mentions = models.BooleanField(default=True, help_text="Mentions, replies, questions and reviews.")
    failures = models.BooleanField(default=True, help_text="Failed rounds and jobs, and decisions.")
    digest = models.BooleanField(default=False, help_text="Once a day, what is unread.")
    digested_at = models.DateTimeField(null=True, blank=True, help_text="When the last digest was made.")

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return f"e-mails of {self.user}"
