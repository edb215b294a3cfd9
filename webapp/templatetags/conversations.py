"""Texts of conversations."""

from django import template
from django.utils.safestring import SafeString

from annotation.text.rendering import render_markdown

register = template.Library()


@register.filter
def markdown(text: str) -> SafeString:
    """Render Markdown as safe HTML."""
    return render_markdown(text, heading_level=2)
