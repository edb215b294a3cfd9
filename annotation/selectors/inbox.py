"""The inbox: what a person was told, in the language of the reader."""

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from annotation.choices import NotificationKind
from annotation.models import MailChoice, Notification, Project, User
from annotation.selectors import access

ICONS = {
    NotificationKind.MENTION: "message-square",
    NotificationKind.REPLY: "message-square",
    NotificationKind.QUESTION: "circle-help",
    NotificationKind.REVIEW_DECIDED: "list-checks",
    NotificationKind.ROUND_FAILED: "triangle-alert",
    NotificationKind.JOB_FAILED: "triangle-alert",
    NotificationKind.DECISION_WAITING: "scale",
    NotificationKind.NOT_ENOUGH_EVIDENCE: "scale",
}

SHOWN_AT_MOST = 99
"""The badge counts no further."""


def notifications_of(user: User, *, unread: bool = False) -> QuerySet[Notification]:
    """Return what a person was told in projects that they may still open, newest first."""
    rows = Notification.objects.filter(user=user, project__in=_open_to(user)).select_related("project")
    return rows.filter(read_at__isnull=True) if unread else rows


def unread_count(user: User) -> int:
    """Return the number of unread notifications, counted up to one more than the badge shows."""
    return notifications_of(user, unread=True).order_by()[: SHOWN_AT_MOST + 1].count()


def sentence(notification: Notification) -> str:
    """Return the notification as a sentence in the active language."""
    sentences = {
        NotificationKind.MENTION: _("%(subject)s mentioned you"),
        NotificationKind.REPLY: _("%(subject)s replied"),
        NotificationKind.QUESTION: _("%(subject)s asked a question"),
        NotificationKind.REVIEW_DECIDED: _("A comparison that you flagged was reviewed"),
        NotificationKind.ROUND_FAILED: _("%(subject)s failed"),
        NotificationKind.JOB_FAILED: _("Failed: %(subject)s"),
        NotificationKind.DECISION_WAITING: _("%(subject)s waits for your decision"),
        NotificationKind.NOT_ENOUGH_EVIDENCE: _("%(subject)s ended without enough evidence"),
    }
    return sentences[NotificationKind(notification.kind)] % {"subject": notification.subject}


def icon_of(notification: Notification) -> str:
    """Return the name of the icon of a notification's kind."""
    return ICONS[NotificationKind(notification.kind)]


def mail_choice_of(user: User) -> MailChoice:
    """Return a person's choice of e-mails, or an unsaved one with the defaults."""
    return MailChoice.objects.filter(user=user).first() or MailChoice(user=user)


def _open_to(user: User) -> QuerySet[Project]:
    return access.projects_for(user).order_by()
