"""Sessions of an account, and its deletion."""

from allauth.usersessions.models import UserSession
from axes.models import AccessAttempt, AccessFailureLog, AccessLog
from django.contrib.sessions.models import Session
from django.db import transaction
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.models import User
from annotation.services.audit import record
from annotation.services.people.accounts import erase_account


def open_sessions(*, user: User) -> list[UserSession]:
    """Return the user's open sessions, last used first."""
    alive = Session.objects.filter(
        session_key__in=UserSession.objects.filter(user=user).values("session_key")
    )
    rows = UserSession.objects.filter(user=user, session_key__in=alive.values("session_key"))
    return list(rows.order_by("-last_seen_at", "-pk"))


def end_session(*, user: User, pk: int) -> None:
    """End one session of the user. Raise `Refusal` for another person's."""
    with transaction.atomic():
        session = UserSession.objects.filter(pk=pk, user=user).first()
        if session is None:
            raise Refusal("session_not_found", _("There is no such session any more."))
        _end([session])
        record(action="session.end", subject="session", actor=user)


def end_other_sessions(*, user: User, current: str) -> int:
    """End all sessions of the user except the one with the key `current`. Return how many."""
    with transaction.atomic():
        rows = list(UserSession.objects.filter(user=user).exclude(session_key=current))
        _end(rows)
        if rows:
            record(action="session.end_others", subject="sessions", actor=user, details={"count": len(rows)})
    return len(rows)


def delete_account(*, user: User) -> None:
    """Delete an account permanently: no sign-in and no name remain, the judgments stay.

    Raise `Refusal` for the last administrator. `annotation.services.people.accounts.erase_account` lists what
    goes and what stays.
    """
    with transaction.atomic():
        username = user.username
        _end(list(UserSession.objects.filter(user=user)))
        for attempts in (AccessAttempt, AccessFailureLog, AccessLog):
            attempts.objects.filter(username=username).delete()
        erase_account(user=user)


def _end(sessions: list[UserSession]) -> None:
    Session.objects.filter(session_key__in=[session.session_key for session in sessions]).delete()
    UserSession.objects.filter(pk__in=[session.pk for session in sessions]).delete()
