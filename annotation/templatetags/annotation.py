"""Times, shares, audit entries and passkeys in templates."""

import ipaddress
from collections.abc import Iterator, Mapping

from django import template
from django.http import HttpRequest
from django.utils.formats import number_format
from django.utils.translation import gettext as _

# Filters of the annotators' pages.

register = template.Library()


@register.filter
def at(values: Mapping[int, bool], key: int) -> bool | None:
    """Return the value of a key; None for none."""
    return values.get(key)


@register.filter
def in_percent(share: float | None) -> str:
    """Return a share as whole percent; nothing for None."""
    return "" if share is None else f"{number_format(round(100 * share))}\N{NO-BREAK SPACE}%"


# Details of audit entries in words.


@register.filter
def audit_details(details: Mapping[str, object]) -> str:
    """Return the details of an audit entry in one line: of a changed value, the old and the new one."""
    return " · ".join(_parts(details))


def _parts(details: Mapping[str, object]) -> Iterator[str]:
    old, new = details.get("from"), details.get("to")
    has_both = "from" in details and "to" in details
    if has_both and isinstance(old, Mapping) and isinstance(new, Mapping):
        names = sorted({*old, *new})
        for name in names:
            yield f"{_name(name)}: {_text(old.get(name))} → {_text(new.get(name))}"
        shown = {"from", "to", "changed"}
    elif has_both:
        yield f"{_text(old)} → {_text(new)}"
        shown = {"from", "to"}
    else:
        shown = set()
    for name, value in details.items():
        if name not in shown and value not in (None, "", [], {}):
            yield f"{_name(name)}: {_text(value)}"


def _name(name: str) -> str:
    return name.replace("_", " ")


def _text(value: object) -> str:
    if isinstance(value, list):
        return "; ".join(map(str, value))
    return "–" if value in (None, "") else str(value)


# Passkeys: WebAuthn needs a secure address that has a domain name.


@register.simple_tag
def passkeys_work(request: HttpRequest) -> bool:
    """Return True where a browser offers passkeys at the address of this request."""
    host = request.get_host()
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    name = name.strip("[]").rstrip(".").lower()
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return request.is_secure() or name == "localhost" or name.endswith(".localhost")
    return False


# Times on the statistics pages.


@register.filter
def time_spent(seconds: float | None) -> str:
    """Seconds as people say them: `45 s`, `3 min 20 s`, `12 h 5 min`; nothing for None."""
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole < 60:
        return _("%(seconds)s s") % {"seconds": whole}
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return _("%(minutes)s min %(seconds)s s") % {"minutes": minutes, "seconds": rest}
    hours, minutes = divmod(minutes, 60)
    return _("%(hours)s h %(minutes)s min") % {"hours": hours, "minutes": minutes}
