"""Comments, notifications and the e-mails that tell of them."""

import logging
import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from smtplib import SMTPException
from typing import Any

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.db.models import Q, QuerySet
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone, translation
from django.utils.translation import gettext as _

from annotation.choices import MailState, NotificationKind, Role, TaskName
from annotation.errors import NotAllowed, Refusal
from annotation.models import (
    Assignment,
    CalibrationItem,
    Comment,
    Comparison,
    Invitation,
    MailChoice,
    Notification,
    Project,
    User,
)
from annotation.models.inbox import LONGEST_COMMENT
from annotation.selectors.calibration import may_talk, talking
from annotation.selectors.inbox import (
    answering,
    may_answer,
    may_join_team,
    may_see_thread,
    notifications_of,
    sentence,
)
from annotation.services.jobs import send, send_after_commit
from annotation.services.projects.invitations import digest_of

# Notifications: written once per event and person, read, and marked as read.
#
# `training` tells managers of rounds through `notify_managers`.

OF_MENTIONS = frozenset(
    {
        NotificationKind.MENTION,
        NotificationKind.REPLY,
        NotificationKind.QUESTION,
        NotificationKind.COMMENT,
        NotificationKind.REVIEW_DECIDED,
        NotificationKind.RETURNED,
        NotificationKind.RETURN_ANSWERED,
        NotificationKind.OVERRULED,
    }
)
"""Kinds that the choice "mentions" switches; the others belong to "failures"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event to tell of."""

    kind: NotificationKind
    key: str
    """Names the event: the same key reaches a person once."""
    address: str
    subject: str = ""
    excerpt: str = ""


def notify(*, project_id: int, users: Iterable[User], event: Event) -> int:
    """Notify people of an event, each once; return how many were. Call it in its transaction."""
    people = {user.pk: user for user in users if user.is_active}
    known = Notification.objects.filter(user__in=people, key=event.key).values_list("user_id", flat=True)
    for pk in list(known):
        del people[pk]
    mailed = _mailed(people.values(), event.kind)
    rows = [
        Notification(
            user_id=pk,
            project_id=project_id,
            kind=event.kind,
            key=event.key,
            subject=_stored(event.subject, 200),
            excerpt=_stored(event.excerpt, 300),
            address=event.address,
            mail=MailState.WAITING if pk in mailed else MailState.NONE,
        )
        for pk in people
    ]
    # Two that tell of the same event at once leave one row each.
    Notification.objects.bulk_create(rows, ignore_conflicts=True)
    if mailed:
        _send_after_commit(event.key, mailed)
    return len(rows)


def notify_managers(*, project_id: int, event: Event) -> int:
    """Tell the managers of a project of an event, each once. Call it in the transaction of the event."""
    return notify(project_id=project_id, users=managers_of(project_id), event=event)


def managers_of(project_id: int) -> list[User]:
    """Return the people who manage a project as members."""
    return list(
        User.objects.filter(
            memberships__project=project_id, memberships__role=Role.MANAGER, is_active=True
        ).order_by("pk")
    )


def mark_read(*, user: User, ids: Collection[int] | None = None) -> int:
    """Mark notifications of `user` as read, all of them without `ids`; return how many were unread."""
    unread = Notification.objects.filter(user=user, read_at__isnull=True)
    if ids is not None:
        unread = unread.filter(pk__in=list(ids))
    return unread.update(read_at=timezone.now())


def mark_unread(*, user: User, pk: int) -> None:
    """Mark one notification of `user` as unread."""
    Notification.objects.filter(user=user, pk=pk).update(read_at=None)


def _mailed(users: Iterable[User], kind: NotificationKind) -> set[int]:
    """Return who of these gets an e-mail of this kind."""
    if not settings.RONDO_EMAIL:
        return set()
    able = {user.pk for user in users if user.email}
    field = "mentions" if kind in OF_MENTIONS else "failures"
    return able - set(
        MailChoice.objects.filter(user__in=able, **{field: False}).values_list("user_id", flat=True)
    )


def _send_after_commit(key: str, user_ids: set[int]) -> None:
    # `ignore_conflicts` tells no primary keys: they are looked up.
    waiting = Notification.objects.filter(key=key, user__in=user_ids, mail=MailState.WAITING)
    for pk in waiting.values_list("pk", flat=True):
        send_after_commit(TaskName.SEND_NOTIFICATION, pk)


def _stored(text: str, most: int) -> str:
    one_line = " ".join(text.replace("\x00", "").split())
    return one_line if len(one_line) <= most else f"{one_line[: most - 1]}…"


def forget_notifications(*, days: int = 90) -> int:
    """Delete notifications older than `days`; return how many."""
    with transaction.atomic():
        oldest = timezone.now() - timedelta(days=days)
        return Notification.objects.filter(created_at__lt=oldest).delete()[0]


# Comments: asked by an annotator, answered by managers and reviewers.
#
# A thread lies between the annotator of one assignment and the project's managers and reviewers. Who may
# see it
# is decided in `annotation.selectors.inbox` alone.

_MENTION = re.compile(r"(?<![\w@.+/-])@([\w.@+-]{1,150})")
MOST_MENTIONS = 20
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def post_comment(*, assignment: Assignment, author: User, text: str) -> Comment:
    """Write a comment into the thread of an assignment, and notify whom it concerns after the commit.

    What a manager or reviewer writes resolves the questions before it. Refuses who may not see the thread
    (`NotAllowed`), and an empty or too long text.
    """
    if not may_see_thread(author, assignment):
        raise NotAllowed("not_concerned_with_comparison", _("You have nothing to do with this comparison."))
    written = _checked(text)
    with transaction.atomic():
        comment = Comment.objects.create(assignment=assignment, author=author, text=written)
        if author.pk != assignment.annotator_id:
            _resolve(assignment)
            comment.refresh_from_db()
        _notify(comment)
    return comment


def post_team_comment(*, comparison: Comparison, author: User, text: str) -> Comment:
    """Write a comment into the team's thread on a comparison: managers and reviewers who are not blind.

    Who is mentioned is notified, and who wrote in the thread before. Refuses everyone else (`NotAllowed`),
    and an empty or too long text.
    """
    if not may_join_team(author, comparison):
        raise NotAllowed("not_concerned_with_comparison", _("You have nothing to do with this comparison."))
    written = _checked(text)
    with transaction.atomic():
        comment = Comment.objects.create(comparison=comparison, author=author, text=written)
        _notify_team(comment, comparison)
    return comment


def post_talk(*, item: CalibrationItem, author: User, text: str) -> Comment:
    """Write a comment into the talk on an item of a revealed calibration session.

    Who is mentioned is notified, and who wrote in the talk before. Refuses who does not take part
    (`NotAllowed`), and an empty or too long text.
    """
    if not may_talk(author, item):
        raise NotAllowed("not_concerned_with_comparison", _("You have nothing to do with this comparison."))
    written = _checked(text)
    with transaction.atomic():
        comment = Comment.objects.create(calibration_item=item, author=author, text=written)
        _notify_talk(comment, item)
    return comment


def edit_comment(*, comment: Comment, author: User, text: str) -> Comment:
    """Change the text of one's own comment; those newly mentioned are notified."""
    if comment.assignment is not None:
        may_edit = may_see_thread(author, comment.assignment)
    elif comment.calibration_item is not None:
        may_edit = may_talk(author, comment.calibration_item)
    else:
        may_edit = comment.comparison is not None and may_join_team(author, comment.comparison)
    if comment.author_id != author.pk or not may_edit:
        raise NotAllowed("author_edits_comment", _("Only its author edits a comment."))
    written = _checked(text)
    if written == comment.text:
        return comment
    with transaction.atomic():
        comment.text, comment.edited_at = written, timezone.now()
        comment.save(update_fields=["text", "edited_at"])
        if comment.assignment is not None:
            _notify(comment)
        elif comment.calibration_item is not None:
            _notify_talk(comment, comment.calibration_item)
        elif comment.comparison is not None:
            _notify_team(comment, comment.comparison)
    return comment


def resolve_thread(*, assignment: Assignment, user: User) -> int:
    """Mark the open questions of a thread as resolved; return how many there were."""
    if not may_answer(user, assignment):
        raise NotAllowed("reviewer_resolves_questions", _("Managers and reviewers resolve questions."))
    return _resolve(assignment)


def mentioned_in(text: str) -> list[str]:
    """Return the user names that a text mentions with `@`, each once, in lower case."""
    # A sentence may end right after a name, which may hold a full stop.
    names = [name.rstrip(".").lower() for name in _MENTION.findall(text)]
    return list(dict.fromkeys(name for name in names if name))[:MOST_MENTIONS]


def _resolve(assignment: Assignment) -> int:
    return Comment.objects.filter(assignment=assignment, resolved_at__isnull=True).update(
        resolved_at=timezone.now()
    )


def _checked(text: str) -> str:
    written = text.replace("\r\n", "\n").strip()
    if not written:
        raise Refusal("comment_missing", _("Write something first."), field="text")
    if len(written) > LONGEST_COMMENT:
        raise Refusal(
            "comment_too_long",
            _("A comment has at most %(most)d characters."),
            field="text",
            most=LONGEST_COMMENT,
        )
    if _UNSTORABLE.search(written):
        raise Refusal(
            "text_not_storable", _("The text holds a character that cannot be stored."), field="text"
        )
    return written


def _notify(comment: Comment) -> None:
    """Tell the mentioned, then the other side: managers of a question, the annotator of a reply.

    Only people who may see the thread are notified. A comment has one key, so nobody is notified twice.
    """
    assignment, author = comment.assignment, comment.author
    if assignment is None:
        return
    project = assignment.comparison.project
    names = set(mentioned_in(comment.text))
    audience = [*answering(assignment.comparison), assignment.annotator]
    mentioned = [user for user in audience if user.username.lower() in names and user.pk != author.pk]
    _tell(comment, NotificationKind.MENTION, mentioned)
    mentioned_ids = {user.pk for user in mentioned}
    if author.pk == assignment.annotator_id:
        others = [user for user in managers_of(project.pk) if user.pk not in {author.pk, *mentioned_ids}]
        _tell(comment, NotificationKind.QUESTION, others)
    else:
        before = User.objects.filter(comments__assignment=assignment).distinct()
        part = {assignment.annotator_id, *before.values_list("pk", flat=True)}
        others = [user for user in audience if user.pk in part - {author.pk, *mentioned_ids}]
        begins = not Comment.objects.filter(assignment=assignment).exclude(pk=comment.pk).exists()
        _tell(comment, NotificationKind.COMMENT if begins else NotificationKind.REPLY, others)


def _notify_team(comment: Comment, comparison: Comparison) -> None:
    """Tell the mentioned members of the team, then those who wrote in its thread before."""
    address = f"{reverse('comments', args=[comparison.project.slug, comparison.pk])}#team"
    before = Comment.objects.filter(comparison=comparison)
    _notify_of(comment, comparison.project, answering(comparison), before, address)


def _notify_talk(comment: Comment, item: CalibrationItem) -> None:
    """Tell the mentioned participants of a calibration session, then those who wrote in the talk before."""
    project = item.session.project
    address = f"{reverse('calibration-item', args=[project.slug, item.session_id, item.index])}#talk"
    before = Comment.objects.filter(calibration_item=item)
    _notify_of(comment, project, talking(item), before, address)


def _notify_of(
    comment: Comment, project: Project, audience: Iterable[User], before: QuerySet[Comment], address: str
) -> None:
    names = set(mentioned_in(comment.text))
    others = [user for user in audience if user.pk != comment.author_id]
    authors = set(before.values_list("author_id", flat=True))
    for kind, users in (
        (NotificationKind.MENTION, [user for user in others if user.username.lower() in names]),
        (NotificationKind.REPLY, [user for user in others if user.pk in authors]),
    ):
        event = Event(
            kind=kind,
            key=f"comment:{comment.pk}",
            subject=str(comment.author),
            excerpt=comment.text,
            address=address,
        )
        notify(project_id=project.pk, users=users, event=event)


def _tell(comment: Comment, kind: NotificationKind, users: list[User]) -> None:
    """Write notifications; each person gets the address of the thread as they may open it."""
    assignment = comment.assignment
    if assignment is None:
        return
    project = assignment.comparison.project
    annotators = [user for user in users if user.pk == assignment.annotator_id]
    for group, address in (
        (annotators, reverse("ask", args=[project.slug, assignment.pk])),
        (
            [user for user in users if user not in annotators],
            f"{reverse('comments', args=[project.slug, assignment.comparison_id])}#thread-{assignment.pk}",
        ),
    ):
        if group:
            event = Event(
                kind=kind,
                key=f"comment:{comment.pk}",
                subject=str(comment.author),
                excerpt=comment.text,
                address=address,
            )
            notify(project_id=project.pk, users=group, event=event)


# E-mails: a notification, a digest, an invitation. Each is sent at most once.
#
# A row waits until a worker claims it with a guarded UPDATE; what fails after that is not sent a second
# time,
# since nobody knows if it arrived. The inbox keeps everything.

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
