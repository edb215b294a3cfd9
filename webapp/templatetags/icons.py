"""Icons of static/vendor/lucide: `{% icon "book-open" %}`, available in every template.

Decoration only: state the meaning in words next to it.
"""

import re
from functools import cache

from django import template
from django.utils.safestring import SafeString, mark_safe

from webapp.environment.places import ASSETS

register = template.Library()

_FOLDER = ASSETS / "static" / "vendor" / "lucide"
_DRAWING = re.compile(r"<svg[^>]*>(.*)</svg>", re.S)


@register.simple_tag
@cache
def icon(name: str) -> SafeString:
    """Return the drawing of a Lucide icon; raise `TemplateSyntaxError` for a name that is not vendored."""
    match = _DRAWING.search(_read(name))
    drawing = re.sub(r"\s*\n\s*", "", match[1]) if match else ""
    svg = f'<svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">{drawing}</svg>'
    return mark_safe(svg)  # noqa: S308 - a file of ours, no input


def _read(name: str) -> str:
    try:
        return (_FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    except FileNotFoundError:
        raise template.TemplateSyntaxError(f"static/vendor/lucide has no icon {name!r}") from None
