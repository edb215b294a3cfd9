"""Icons of templates/components/icons/: `{% icon "book" %}`, known to every template.

Decoration only: say the meaning in words beside it.
"""

from functools import cache

from django import template
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

register = template.Library()


@register.simple_tag
@cache
def icon(name: str) -> SafeString:
    """The drawing of that name. A dozen of them stand on a page: each is read once per process."""
    return render_to_string(f"components/icons/{name}.html")
