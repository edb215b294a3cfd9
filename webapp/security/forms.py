"""Forms of allauth with our field names and our count of wrong attempts."""

import math
from datetime import datetime, timedelta
from typing import Any

from allauth.account.forms import LoginForm as AllauthLoginForm
from allauth.account.forms import ResetPasswordForm as AllauthResetPasswordForm
from allauth.core import context
from allauth.mfa.app_settings import TOTP_PERIOD
from allauth.mfa.base.forms import AuthenticateForm as AllauthAuthenticateForm
from allauth.mfa.base.forms import ReauthenticateForm as AllauthReauthenticateForm
from allauth.mfa.models import Authenticator
from axes.handlers.proxy import AxesProxyHandler
from axes.models import AccessAttempt
from django import forms
from django.conf import settings
from django.contrib.auth.signals import user_login_failed
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from annotation.choices import TaskName
from annotation.models import User
from annotation.selectors.access import client_address
from annotation.services.jobs import send_after_commit

# Lockout after repeated wrong passwords or codes, with the remaining time.
#
# django-axes counts in the database, so several web processes and machines share one count. allauth's own
# limits live in the cache of one process.


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


class LoginForm(AllauthLoginForm):  # type: ignore[misc]
    """Username and password, with the field names that password managers expect."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["login"].label = _("Username")
        self.fields["password"].label = _("Password")
        for field in self.fields.values():
            field.widget.attrs.pop("placeholder", None)
        # The page links to the reset itself.
        self.fields["password"].help_text = ""

    def add_prefix(self, field_name: str) -> str:
        return "username" if field_name == "login" else str(super().add_prefix(field_name))


class ResetPasswordForm(AllauthResetPasswordForm):  # type: ignore[misc]
    """The address of an account. Workers send the link, so that no request waits for a mail server."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["email"].label = _("E-mail address")
        self.fields["email"].widget.attrs.pop("placeholder", None)

    def save(self, request: HttpRequest, **kwargs: Any) -> str:
        # A message goes out without an account, too: its time tells nothing.
        for pk in [user.pk for user in self.users] or [0]:
            send_after_commit(TaskName.SEND_PASSWORD_RESET, pk)
        return str(self.cleaned_data["email"])


def is_used_up(authenticator: Authenticator, now: datetime) -> bool:
    """Return True if a code of this TOTP period was used, in any process on any machine.

    allauth remembers codes in the cache of one process only.
    """
    last: datetime | None = authenticator.last_used_at
    if authenticator.type != Authenticator.Type.TOTP or last is None:
        return False
    return bool(int(last.timestamp()) // TOTP_PERIOD == int(now.timestamp()) // TOTP_PERIOD)


class _CountsWrongCodes(forms.Form):
    """Counts wrong codes together with wrong passwords of the same user and address."""

    user: Any
    authenticator: Authenticator

    def clean_code(self) -> str:
        request = context.request
        if not code_may_be_tried(request, self.user):
            minutes = minutes_left(username=self.user.get_username(), address=client_address(request))
            raise forms.ValidationError(wait(minutes))
        try:
            code = str(super().clean_code())  # type: ignore[misc]
            if is_used_up(self.authenticator, timezone.now()):
                raise forms.ValidationError(_("This code was used. Wait for the next one."))
        except forms.ValidationError:
            count_wrong_code(request, self.user)
            raise
        return code


class AuthenticateForm(_CountsWrongCodes, AllauthAuthenticateForm):  # type: ignore[misc]
    """The code after the password."""


class ReauthenticateForm(_CountsWrongCodes, AllauthReauthenticateForm):  # type: ignore[misc]
    """The code before a change to the account's protection."""
