"""Notifications: written once per event and person, read, and marked as read.

`training` tells managers of rounds through `notify_managers`.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from annotation.choices import MailState, NotificationKind, Role, TaskName
from annotation.models import MailChoice, Notification, User
from annotation.services.jobs.messages import send_after_commit

OF_MENTIONS = frozenset(
    {
        NotificationKind.MENTION,
        NotificationKind.REPLY,
        NotificationKind.QUESTION,
        NotificationKind.REVIEW_DECIDED,
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
    """Tell people of an event, each once; return how many had not been told. Call it in its transaction."""
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
