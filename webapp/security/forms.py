"""Forms of allauth with our field names and our count of wrong attempts."""

from datetime import datetime
from typing import Any

from allauth.account.forms import LoginForm as AllauthLoginForm
from allauth.account.forms import ResetPasswordForm as AllauthResetPasswordForm
from allauth.core import context
from allauth.mfa.app_settings import TOTP_PERIOD
from allauth.mfa.base.forms import AuthenticateForm as AllauthAuthenticateForm
from allauth.mfa.base.forms import ReauthenticateForm as AllauthReauthenticateForm
from allauth.mfa.models import Authenticator
from django import forms
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from annotation.api.authentication import client_address
from annotation.choices import TaskName
from annotation.services.jobs.messages import send_after_commit
from webapp.security import lockout


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
        if not lockout.code_may_be_tried(request, self.user):
            minutes = lockout.minutes_left(username=self.user.get_username(), address=client_address(request))
            raise forms.ValidationError(lockout.wait(minutes))
        try:
            code = str(super().clean_code())  # type: ignore[misc]
            if is_used_up(self.authenticator, timezone.now()):
                raise forms.ValidationError(_("This code was used. Wait for the next one."))
        except forms.ValidationError:
            lockout.count_wrong_code(request, self.user)
            raise
        return code


class AuthenticateForm(_CountsWrongCodes, AllauthAuthenticateForm):  # type: ignore[misc]
    """The code after the password."""


class ReauthenticateForm(_CountsWrongCodes, AllauthReauthenticateForm):  # type: ignore[misc]
    """The code before a change to the account's protection."""
