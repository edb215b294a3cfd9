"""Guessing is stopped: after a few wrong passwords or codes, and whoever has to wait is told how long.

django-axes keeps the count, because it keeps it in the database: with several web processes, on several
machines, a guesser has as many tries as with one. allauth's own limits live in the cache of one process.
"""

import math
from datetime import datetime, timedelta

from allauth.account.adapter import get_adapter
from axes.handlers.proxy import AxesProxyHandler
from axes.models import AccessAttempt
from django.conf import settings
from django.contrib.auth.signals import user_login_failed
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import ngettext

from annotation.models import User


def client_address(request: HttpRequest) -> str | None:
    """The address that a request comes from; behind proxies the one that the outermost of ours saw.

    None where nobody can say: a web server that is asked through a socket of the file system.
    """
    try:
        return str(get_adapter().get_client_ip(request))
    except PermissionDenied:
        return None


def minutes_left(*, username: str, address: str | None, now: datetime | None = None) -> int:
    """For how many minutes yet nobody signs in by this name from this address; at least one."""
    last = (
        AccessAttempt.objects.filter(username=username, ip_address=address)
        .order_by("-attempt_time")
        .values_list("attempt_time", flat=True)
        .first()
    )
    moment = now or timezone.now()
    cool_off: timedelta = settings.AXES_COOLOFF_TIME
    left = (last + cool_off - moment) if last else cool_off
    return max(1, math.ceil(left.total_seconds() / 60))


def wait(minutes: int) -> str:
    """What somebody who has to wait reads."""
    return ngettext(
        "Too many wrong attempts. Try again in %(minutes)d minute.",
        "Too many wrong attempts. Try again in %(minutes)d minutes.",
        minutes,
    ) % {"minutes": minutes}


def locked_out(
    request: HttpRequest, response: HttpResponse | None = None, credentials: dict[str, str] | None = None
) -> HttpResponse:
    """The page of somebody who guessed too often: 429, with how long to wait."""
    username = (credentials or {}).get("username", "")
    minutes = minutes_left(username=username, address=client_address(request))
    answer = render(
        request,
        "account/locked.html",
        {"message": wait(minutes)},
        status=429,
    )
    answer["Retry-After"] = str(60 * minutes)
    return answer


def code_may_be_tried(request: HttpRequest, user: User) -> bool:
    """Whether this person may still try a code of their second factor from here."""
    return bool(AxesProxyHandler.is_allowed(request, {"username": user.get_username()}))


def count_wrong_code(request: HttpRequest, user: User) -> None:
    """A wrong code counts like a wrong password: six digits are guessed sooner than a sentence."""
    user_login_failed.send(
        sender="webapp.security", credentials={"username": user.get_username()}, request=request
    )
