"""Details of audit entries in words."""

from collections.abc import Iterator, Mapping

from django import template

register = template.Library()


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
