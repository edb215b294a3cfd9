"""Links to the guide, available in every template.

`{% guide_address %}` explains the current page, `{% field_guide field %}` a form's field, and
`{% setting_guide page anchor %}` a setting that no form holds.
"""

from django import template
from django.forms import BoundField
from django.template import Context

from webapp.guide.help_links import field_address, help_address, row_address

register = template.Library()


@register.simple_tag(takes_context=True)
def guide_address(context: Context) -> str:
    """Return the address behind the “?” of this page."""
    request = context.get("request")
    match = request.resolver_match if request is not None else None
    return help_address(match.url_name or "" if match else "")


@register.simple_tag
def field_guide(field: BoundField) -> str:
    """Return the address behind the “?” of a form's field; empty where the form has none."""
    return field_address(field)


@register.simple_tag
def setting_guide(page: str, anchor: str) -> str:
    """Return the address behind the “?” of a setting that is no field of a form."""
    return row_address(page, anchor)
