"""E-mails: a notification, a digest, an invitation. Each is sent at most once.

A row waits until a worker claims it with a guarded UPDATE; what fails after that is not sent a second time,
since nobody knows if it arrived. The inbox keeps everything.
"""

import logging
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from smtplib import SMTPException
from typing import Any

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.db.models import Q
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone, translation
from django.utils.translation import gettext as _

from annotation.choices import MailState, TaskName
from annotation.errors import Refusal
from annotation.models import Invitation, MailChoice, Notification, User
from annotation.selectors.inbox import notifications_of, sentence
from annotation.services.jobs.messages import send
from annotation.services.projects.invitations import digest_of

logger = logging.getLogger(__name__)

MOST_IN_DIGEST = 50
_SWEPT_AT_ONCE = 500


def absolute(path: str) -> str:
    """Return the address of a page for a reader outside Rondo."""
    return f"{settings.RONDO_ADDRESS}{path}"


def choose_mail(*, user: User, email: str, mentions: bool, failures: bool, digest: bool) -> MailChoice:
    """Store where and when a person gets e-mails. Refuses programs and guests."""
    if user.is_machine or user.is_guest:
        raise Refusal("account_gets_no_mail", _("This account gets no e-mail."))
    with transaction.atomic():
        if user.email != email:
            user.email = email
            user.save(update_fields=["email"])
        choice, _created = MailChoice.objects.update_or_create(
            user=user, defaults={"mentions": mentions, "failures": failures, "digest": digest}
        )
    return choice


def send_notification(pk: int) -> bool:
    """Send the e-mail of a notification that waits; return True where it was sent by this call.

    Nothing is sent of what was read meanwhile, or to who may no longer open the project.
    """
    row = Notification.objects.select_related("user", "project").filter(pk=pk).first()
    if row is None or not _claim(Notification.objects.filter(pk=pk)):
        return False
    user = row.user
    if row.read_at or not user.is_active or not user.email or not notifications_of(user).filter(pk=pk):
        Notification.objects.filter(pk=pk).update(mail=MailState.NONE)
        return False
    with translation.override(user.language or settings.LANGUAGE_CODE):
        context = {"row": row, "sentence": sentence(row), "link": absolute(row.address), **_footer()}
        sent = deliver(user.email, f"[{row.project}] {sentence(row)}", "mail/notification.txt", context)
    if not sent:
        Notification.objects.filter(pk=pk).update(mail=MailState.FAILED)
    return sent


def send_invitation(pk: int) -> bool:
    """Draw the link of an invitation that waits and send it; return True where it was sent by this call.

    The link is drawn here, so that no message to a worker and no table ever holds it.
    """
    row = Invitation.objects.select_related("project", "created_by").filter(pk=pk).first()
    if row is None or not row.is_good(timezone.now()):
        return False
    secret = secrets.token_urlsafe(32)
    if not _claim(Invitation.objects.filter(pk=pk), digest=digest_of(secret)):
        return False
    link = absolute(reverse("invitation", kwargs={"secret": secret}))
    with translation.override(row.created_by.language or settings.LANGUAGE_CODE):
        subject = _("Invitation to %(project)s") % {"project": row.project}
        sent = deliver(row.email, subject, "mail/invitation.txt", {"invitation": row, "link": link})
    if not sent:
        Invitation.objects.filter(pk=pk).update(mail=MailState.FAILED)
    return sent


def send_digests(*, now: datetime | None = None) -> int:
    """Send each person who wants one a list of what is unread, at most once a day; return how many."""
    moment = now or timezone.now()
    if not settings.RONDO_EMAIL:
        return 0
    today = timezone.localtime(moment).replace(hour=0, minute=0, second=0, microsecond=0)
    due = Q(digested_at__isnull=True) | Q(digested_at__lt=today)
    choices = MailChoice.objects.filter(due, digest=True, user__is_active=True).exclude(user__email="")
    return sum(_send_digest(choice, due, moment) for choice in choices.select_related("user"))


def sweep_mail() -> None:
    """Wake a worker for each e-mail that waits: its message was lost."""
    if not settings.RONDO_EMAIL:
        return
    waiting: Sequence[tuple[Any, str]] = (
        (Notification, TaskName.SEND_NOTIFICATION),
        (Invitation, TaskName.SEND_INVITATION),
    )
    for model, task in waiting:
        rows = model.objects.filter(mail=MailState.WAITING).order_by("pk")
        for pk in rows.values_list("pk", flat=True)[:_SWEPT_AT_ONCE]:
            send(task, pk)


def _claim(rows: Any, **values: object) -> bool:
    return bool(
        settings.RONDO_EMAIL and rows.filter(mail=MailState.WAITING).update(mail=MailState.SENT, **values)
    )


def _send_digest(choice: MailChoice, due: Q, moment: datetime) -> bool:
    """Claim a person's digest of the day, and send it if there is anything that the last did not have."""
    before = choice.digested_at
    if not MailChoice.objects.filter(due, pk=choice.pk, digest=True).update(digested_at=moment):
        return False
    user = choice.user
    rows = notifications_of(user, unread=True).filter(created_at__lte=moment)
    if before is not None:
        rows = rows.filter(created_at__gt=before)
    shown = list(rows[: MOST_IN_DIGEST + 1])
    if not shown:
        return False
    with translation.override(user.language or settings.LANGUAGE_CODE):
        context = {
            "rows": [(row, sentence(row), absolute(row.address)) for row in shown[:MOST_IN_DIGEST]],
            "more": len(shown) > MOST_IN_DIGEST,
            "inbox": absolute(reverse("inbox")),
            **_footer(),
        }
        return deliver(user.email, _("Your day in Rondo"), "mail/digest.txt", context)


def _footer() -> dict[str, str]:
    return {"choice": absolute(f"{reverse('account')}#notifications")}


def deliver(address: str, subject: str, template: str, context: Mapping[str, Any]) -> bool:
    """Send a plain text; return False where it could not be sent, which is logged without the address."""
    # A header ends at a line end: nobody writes headers of their own through a name.
    message = EmailMessage(
        subject=" ".join(subject.split())[:150],
        body=render_to_string(template, dict(context)),
        to=[address],
        # No "out of office" comes back.
        headers={"Auto-Submitted": "auto-generated"},
    )
    try:
        message.send()
    except (SMTPException, OSError, ValueError) as error:
        logger.warning("an e-mail could not be sent: %s", type(error).__name__)
        return False
    return True
