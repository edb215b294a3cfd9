"""An account as a whole: which sessions it has open, and its end."""

from allauth.usersessions.models import UserSession
from axes.models import AccessAttempt, AccessFailureLog, AccessLog
from django.contrib.sessions.models import Session
from django.db import transaction
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.models import User
from annotation.services.audit import record
from annotation.services.people import erase_account


def open_sessions(*, user: User) -> list[UserSession]:
    """The sessions of this person that still open something, the last used first."""
    alive = Session.objects.filter(
        session_key__in=UserSession.objects.filter(user=user).values("session_key")
    )
    found = UserSession.objects.filter(user=user, session_key__in=alive.values("session_key"))
    return list(found.order_by("-last_seen_at", "-pk"))


def end_session(*, user: User, pk: int) -> None:
    """End one session of this person: its next request is nobody's. Refuses another person's."""
    with transaction.atomic():
        session = UserSession.objects.filter(pk=pk, user=user).first()
        if session is None:
            raise Refusal(_("There is no such session any more."))
        _end([session])
        record(action="session.end", subject="session", actor=user)


def end_other_sessions(*, user: User, current: str) -> int:
    """End all sessions of this person but the one with the key `current`; how many that were."""
    with transaction.atomic():
        others = list(UserSession.objects.filter(user=user).exclude(session_key=current))
        _end(others)
        if others:
            record(
                action="session.end_others", subject="sessions", actor=user, details={"count": len(others)}
            )
    return len(others)


def delete_account(*, user: User) -> None:
    """Delete an account for good: nobody signs in by it, no name remains, the judgments stay.

    Refuses the last administrator. What goes and what stays: `annotation.services.people.erase_account`.
    """
    with transaction.atomic():
        username = user.username
        _end(list(UserSession.objects.filter(user=user)))
        for attempts in (AccessAttempt, AccessFailureLog, AccessLog):
            attempts.objects.filter(username=username).delete()
        erase_account(user=user)


def _end(sessions: list[UserSession]) -> None:
    Session.objects.filter(session_key__in=[one.session_key for one in sessions]).delete()
    UserSession.objects.filter(pk__in=[one.pk for one in sessions]).delete()
