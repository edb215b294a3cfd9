"""Values of a row that no database and no JSON can hold: refused with the path of the field."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from django.utils.translation import gettext as _

from annotation.exchange.formats.fields import FieldError, text

DEEPEST = 200
"""Levels of objects and lists in one row: more than any tree of messages has, fewer than Python can print."""

_At = tuple["_At", str] | None
"""A path, as its parent and its last part: spelled out for a faulty value alone."""


def refuse_unstorable(row: Mapping[str, Any]) -> None:
    """Refuse NUL, half a surrogate pair, a number too large for JSON, and deep nesting, wherever it stands.

    Raises `FieldError` for the first such value, with the path to it, also in columns that nobody reads: the
    preview shows them all.
    """
    waiting: list[tuple[Any, _At, int]] = [(row, None, 0)]
    while waiting:
        value, at, depth = waiting.pop()
        if isinstance(value, str):
            _refuse_text(value, at)
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise FieldError(
                    "number_too_large",
                    _("The number is too large. Write one below 1.8e308, or write it as a text."),
                    field=_spelled(at),
                )
        elif isinstance(value, (dict, list)):
            if depth == DEEPEST:
                raise FieldError(
                    "nested_too_deeply",
                    _("The row is nested too deeply. It may have at most %(most)s levels."),
                    most=DEEPEST,
                )
            inner = list(_inner(value, at))
            waiting += ((part, path, depth + 1) for part, path in reversed(inner))


def _inner(value: dict[str, Any] | list[Any], at: _At) -> Iterator[tuple[Any, _At]]:
    if isinstance(value, list):
        yield from ((part, (at, f"[{number}]")) for number, part in enumerate(value))
        return
    for name, item in value.items():
        path = (at, f".{name}")
        _refuse_text(name, path)
        yield item, path


def _refuse_text(value: str, at: _At) -> None:
    # Cheap questions first: an import asks them of every text.
    if "\x00" in value or not value.isascii():
        text(value, _spelled(at), empty=True)


def _spelled(at: _At) -> str:
    parts = []
    while at is not None:
        at, part = at
        parts.append(part)
    return "".join(reversed(parts)).removeprefix(".")
