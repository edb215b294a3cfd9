"""Shares on the pages of the registry and of drift."""

from django import template

register = template.Library()

_WORSE, _CHANCE, _BETTER = 0.45, 0.55, 0.7


@register.filter
def percent(share: float | None, decimals: int = 1) -> str:
    """Return a share as percent, by default with one decimal; nothing for None."""
    return "" if share is None else f"{100 * share:.{decimals}f} %"


@register.filter
def agreement_shade(share: float) -> str:
    """The class of a cell: below chance, about chance, above, far above."""
    if share < _WORSE:
        return "shade-worse"
    if share <= _CHANCE:
        return "shade-chance"
    return "shade-better" if share < _BETTER else "shade-best"
