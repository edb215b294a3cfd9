"""Comments, notifications and choices of e-mails."""

from django.contrib import admin

from annotation.admin.base import WrittenOnceAdmin
from annotation.models import Comment, MailChoice, Notification


@admin.register(Comment)
class CommentAdmin(WrittenOnceAdmin):
    """Comments on comparisons."""

    list_display = ["author", "assignment", "created_at", "edited_at", "resolved_at"]
    list_filter = ["assignment__comparison__project", "resolved_at", "created_at"]
    list_select_related = ["author", "assignment__comparison", "assignment__annotator"]
    search_fields = ["text", "author__username"]


@admin.register(Notification)
class NotificationAdmin(WrittenOnceAdmin):
    """Notifications in people's inboxes."""

    list_display = ["user", "kind", "subject", "project", "created_at", "read_at", "mail"]
    list_filter = ["kind", "mail", "project", "created_at"]
    list_select_related = ["user", "project"]
    search_fields = ["subject", "user__username", "project__name", "project__slug"]


@admin.register(MailChoice)
class MailChoiceAdmin(WrittenOnceAdmin):
    """The e-mails that people want."""

    list_display = ["user", "mentions", "failures", "digest", "digested_at"]
    list_filter = ["mentions", "failures", "digest"]
    list_select_related = ["user"]
    search_fields = ["user__username", "user__email"]
