"""What people settle about themselves."""

from django.conf import settings
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.models import User


def choose_language(*, user: User, language: str) -> None:
    """Store the language of someone's pages; empty follows their browser. Refuses one that Rondo has not."""
    if language and language not in dict(settings.LANGUAGES):
        raise Refusal(_("Rondo does not speak this language. Choose one of the list."), field="language")
    user.language = language
    user.save(update_fields=["language"])
