"""`{% guide_address %}`: the guide page that explains the current page, available in every template."""

from django import template
from django.template import Context

from webapp.guide.help_links import help_address

register = template.Library()


@register.simple_tag(takes_context=True)
def guide_address(context: Context) -> str:
    """Return the address behind the “?” of this page."""
    request = context.get("request")
    match = request.resolver_match if request is not None else None
    return help_address(match.url_name or "" if match else "")
