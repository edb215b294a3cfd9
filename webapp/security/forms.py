"""The forms of allauth with our names of fields and our count of wrong attempts."""

from datetime import datetime
from typing import Any

from allauth.account.forms import LoginForm as AllauthLoginForm
from allauth.core import context
from allauth.mfa.app_settings import TOTP_PERIOD
from allauth.mfa.base.forms import AuthenticateForm as AllauthAuthenticateForm
from allauth.mfa.base.forms import ReauthenticateForm as AllauthReauthenticateForm
from allauth.mfa.models import Authenticator
from django import forms
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from webapp.security import lockout


class LoginForm(AllauthLoginForm):  # type: ignore[misc]
    """Name and password. Its fields are called `username` and `password`, as password managers expect."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["login"].label = _("Username")
        self.fields["password"].label = _("Password")
        for field in self.fields.values():
            field.widget.attrs.pop("placeholder", None)
        # The reset by mail that allauth would offer: Rondo sends no mail, administrators set passwords.
        self.fields["password"].help_text = ""

    def add_prefix(self, field_name: str) -> str:
        return "username" if field_name == "login" else str(super().add_prefix(field_name))


def is_used_up(authenticator: Authenticator, now: datetime) -> bool:
    """Whether a code of these seconds opened something already, in whatever process of whatever machine.

    allauth remembers the code in the cache of one process alone.
    """
    last: datetime | None = authenticator.last_used_at
    if authenticator.type != Authenticator.Type.TOTP or last is None:
        return False
    return bool(int(last.timestamp()) // TOTP_PERIOD == int(now.timestamp()) // TOTP_PERIOD)


class _CountsWrongCodes(forms.Form):
    """A code of the second factor, counted with the passwords of the same person from the same address."""

    user: Any
    authenticator: Authenticator

    def clean_code(self) -> str:
        request = context.request
        if not lockout.code_may_be_tried(request, self.user):
            minutes = lockout.minutes_left(
                username=self.user.get_username(), address=lockout.client_address(request)
            )
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
    """The code asked for after the password."""


class ReauthenticateForm(_CountsWrongCodes, AllauthReauthenticateForm):  # type: ignore[misc]
    """The code asked for again before something is changed that protects the account."""
