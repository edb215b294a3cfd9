"""Filters of the annotators' pages."""

from collections.abc import Mapping

from django import template
from django.utils.formats import number_format

register = template.Library()


@register.filter
def at(values: Mapping[int, bool], key: int) -> bool | None:
    """Return the value of a key; None for none."""
    return values.get(key)


@register.filter
def in_percent(share: float | None) -> str:
    """Return a share as whole percent; nothing for None."""
    return "" if share is None else f"{number_format(round(100 * share))}\N{NO-BREAK SPACE}%"
