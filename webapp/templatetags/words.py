"""Translations for scripts, in the language of the page.

They are embedded in the page as data: a separate catalogue would cost a request before a labelling screen can
be used, and English needs none. static/js/theme.js reads them.
"""

from functools import cache
from gettext import GNUTranslations, NullTranslations, translation
from pathlib import Path

from django import template
from django.utils.html import json_script
from django.utils.safestring import SafeString
from django.utils.translation import get_language

register = template.Library()

_LOCALE = Path(__file__).resolve().parent.parent / "locale"


@cache
def _words(language: str) -> dict[str, str | list[str]]:
    """Return message → translation; for a message with a plural, the singular → both forms."""
    catalogue: GNUTranslations | NullTranslations = translation(
        "djangojs", _LOCALE, languages=[language], fallback=True
    )
    words: dict[str, str | list[str]] = {}
    for message, text in getattr(catalogue, "_catalog", {}).items():
        if isinstance(message, tuple):
            forms = words.setdefault(message[0], ["", ""])
            assert isinstance(forms, list)  # noqa: S101 - a message is plural everywhere or nowhere
            forms[message[1]] = text
        elif message:
            words[message] = text
    return words


@register.simple_tag
def script_words() -> SafeString | str:
    """Embed the translations for `translate` in static/js/theme.js; empty in English."""
    words = _words(get_language() or "")
    return json_script(words, "words") if words else ""
