"""Lockout after repeated wrong passwords or codes, with the remaining time.

django-axes counts in the database, so several web processes and machines share one count. allauth's own
limits live in the cache of one process.
"""

import math
from datetime import datetime, timedelta

from axes.handlers.proxy import AxesProxyHandler
from axes.models import AccessAttempt
from django.conf import settings
from django.contrib.auth.signals import user_login_failed
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import ngettext

from annotation.api.authentication import client_address
from annotation.models import User


def minutes_left(*, username: str, address: str | None, now: datetime | None = None) -> int:
    """Return the minutes, at least 1, until this name may sign in from this address again."""
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
    """Return the message about the remaining time."""
    return ngettext(
        "Too many wrong attempts. Try again in %(minutes)d minute.",
        "Too many wrong attempts. Try again in %(minutes)d minutes.",
        minutes,
    ) % {"minutes": minutes}


def locked_out(
    request: HttpRequest, response: HttpResponse | None = None, credentials: dict[str, str] | None = None
) -> HttpResponse:
    """Return the lockout page: 429 with the remaining time."""
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
    """Return True if the user may try another second-factor code from here."""
    return bool(AxesProxyHandler.is_allowed(request, {"username": user.get_username()}))


def count_wrong_code(request: HttpRequest, user: User) -> None:
    """Count a wrong code like a wrong password: six digits are easier to guess."""
    user_login_failed.send(
        sender="webapp.security", credentials={"username": user.get_username()}, request=request
    )
