"""Adapters of allauth: sign-up by invitation, messages, encrypted secrets."""

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.models import Invitation, User
from annotation.models.webhooks import seal, unseal
from annotation.services.people.accounts import require_one_meaning
from annotation.services.projects.invitations import accept_invitation, good_invitation
from annotation.views.invitations import INVITATION

_SECOND_FACTOR = "second factor"


def invitation_of(request: HttpRequest) -> Invitation | None:
    """Return the visitor's valid invitation, if any."""
    pk = request.session.get(INVITATION)
    return good_invitation(pk=pk) if isinstance(pk, int) else None


def join(request: HttpRequest, user: User) -> None:
    """Accept the new user's invitation. Without a valid one no account is created."""
    invitation = invitation_of(request)
    try:
        if invitation is None:
            raise Refusal(
                "invitation_not_usable",
                _("This invitation is used up, expired or revoked. Ask for another one."),
            )
        accept_invitation(invitation=invitation, user=user)
    except Refusal as refusal:
        messages.error(request, refusal.message)
        raise ImmediateHttpResponse(redirect("login")) from refusal
    del request.session[INVITATION]


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    """Accounts by invitation only; wrong passwords are counted in the database (`lockout`)."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return invitation_of(request) is not None

    def save_user(self, request: HttpRequest, user: User, form: Any, commit: bool = True) -> User:
        if not commit:
            return super().save_user(request, user, form, commit=False)  # type: ignore[no-any-return]
        with transaction.atomic():
            made: User = super().save_user(request, user, form, commit=True)
            join(request, made)
        return made

    def clean_username(self, username: str, shallow: bool = False) -> str:
        """Refuse a name that is in use, or that could be taken for another."""
        cleaned = str(super().clean_username(username, shallow=shallow))
        require_one_meaning(cleaned)
        return cleaned

    def pre_authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        """Do nothing: allauth would count in the cache of this process."""

    def add_message(
        self,
        request: HttpRequest,
        level: int,
        message_template: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        # The next page makes these messages redundant.
        if message_template not in ("account/messages/logged_in.txt", "account/messages/logged_out.txt"):
            super().add_message(request, level, message_template, *args, **kwargs)

    def send_notification_mail(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: Rondo sends no mail."""


class SocialAccountAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]
    """Sign-in by another site opens the connected account, never one with the same e-mail."""

    def is_open_for_signup(self, request: HttpRequest, sociallogin: Any) -> bool:
        return invitation_of(request) is not None

    def save_user(self, request: HttpRequest, sociallogin: Any, form: Any = None) -> User:
        with transaction.atomic():
            made: User = super().save_user(request, sociallogin, form)
            join(request, made)
        return made

    def can_authenticate_by_email(self, login: Any, email: str) -> bool:
        return False


class MFAAdapter(DefaultMFAAdapter):  # type: ignore[misc]
    """Second-factor secrets, encrypted with a key derived from Rondo's secret key."""

    def _get_site_name(self) -> str:
        return "Rondo"

    def encrypt(self, text: str) -> str:
        return seal(text, purpose=_SECOND_FACTOR)

    def decrypt(self, encrypted_text: str) -> str:
        return unseal(encrypted_text, purpose=_SECOND_FACTOR)
