"""E-mails with a link to a new password. allauth draws and checks the link."""

from allauth.account.forms import default_token_generator
from allauth.account.utils import user_pk_to_url_str
from django.conf import settings
from django.urls import reverse
from django.utils import translation
from django.utils.translation import gettext as _

from annotation.models import User
from annotation.services.inbox.mail import absolute, deliver


def send_password_reset(user_id: int) -> bool:
    """Send a person the link to a new password; return True where it was sent.

    The link holds for `PASSWORD_RESET_TIMEOUT`, and until the password or the address changes.
    """
    user = User.objects.filter(pk=user_id, is_active=True, is_guest=False, is_machine=False).first()
    if user is None or not user.email or not settings.RONDO_EMAIL:
        return False
    parts = {"uidb36": user_pk_to_url_str(user), "key": default_token_generator.make_token(user)}
    link = absolute(reverse("account_reset_password_from_key", kwargs=parts))
    with translation.override(user.language or settings.LANGUAGE_CODE):
        subject = _("Your password for Rondo")
        return deliver(user.email, subject, "mail/password_reset.txt", {"user": user, "link": link})
