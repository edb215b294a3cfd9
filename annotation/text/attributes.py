"""Attributes of an HTML element, computed in Python."""

from html import escape

from django.utils.safestring import SafeString, mark_safe


def attributes(**values: object) -> SafeString:
    """Return HTML attributes: `data_key` is `data-key`; True has no value, False and None are left out."""
    parts = []
    for name, value in values.items():
        if value is True:
            parts.append(name.replace("_", "-"))
        elif value is not None and value is not False:
            parts.append(f'{name.replace("_", "-")}="{escaped(value)}"')
    return mark_safe(" ".join(parts))  # noqa: S308 - names of ours, values escaped


def escaped(value: object) -> str:
    """Return text for HTML, escaped unless it is safe already; faster than `conditional_escape`."""
    safe = getattr(value, "__html__", None)
    return safe() if safe is not None else escape(str(value))
