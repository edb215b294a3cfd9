"""Declarations of fields in fewer words: what a field means comes first, and a default makes it optional.

    note = fields.text("Whom it is for.", most=100, default="")
    days = fields.integer(least=1, most=MOST_DAYS, default=7)

`serializers` of Django REST framework has the rarer kinds.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from django.db.models import Model
from rest_framework import serializers

LARGEST_INTEGER = 2**31 - 1
LARGEST_KEY = 2**63 - 1
S = TypeVar("S", bound=serializers.ModelSerializer[Any])


def text(meaning: str = "", *, most: int | None = None, **more: Any) -> serializers.CharField:
    """Return a field of text. most: characters. An empty default allows an empty text."""
    if most is not None:
        more["max_length"] = most
    if more.get("default") == "":
        more["allow_blank"] = True
    return serializers.CharField(help_text=meaning or None, **more)


def integer(
    meaning: str = "", *, least: int | None = None, most: int | None = None, **more: Any
) -> serializers.IntegerField:
    """Return a field of a whole number."""
    return serializers.IntegerField(help_text=meaning or None, min_value=least, max_value=most, **more)


def key(meaning: str = "", **more: Any) -> serializers.IntegerField:
    """Return a field of the id of a row, in a body or a filter."""
    return integer(meaning, least=1, most=LARGEST_KEY, **more)


def number(
    meaning: str = "", *, least: float | None = None, most: float | None = None, **more: Any
) -> serializers.FloatField:
    """Return a field of a number."""
    return serializers.FloatField(help_text=meaning or None, min_value=least, max_value=most, **more)


def flag(meaning: str = "", **more: Any) -> serializers.BooleanField:
    """Return a field of true or false."""
    return serializers.BooleanField(help_text=meaning or None, **more)


def time(meaning: str = "", **more: Any) -> serializers.DateTimeField:
    """Return a field of a date with its time."""
    return serializers.DateTimeField(help_text=meaning or None, **more)


def choice(choices: Sequence[Any], meaning: str = "", **more: Any) -> serializers.ChoiceField:
    """Return a field with one of several values."""
    return serializers.ChoiceField(choices=choices, help_text=meaning or None, **more)


def several(
    child: serializers.Field[Any, Any, Any, Any],
    meaning: str = "",
    *,
    least: int | None = None,
    most: int | None = None,
    **more: Any,
) -> serializers.ListField:
    """Return a field of a list. least, most: entries."""
    return serializers.ListField(
        child=child, help_text=meaning or None, min_length=least, max_length=most, **more
    )


def computed(meaning: str = "") -> serializers.SerializerMethodField:
    """Return a field that the method `get_…` of the serializer computes."""
    return serializers.SerializerMethodField(help_text=meaning or None)


def of(model: type[Model], *names: str) -> Callable[[type[S]], type[S]]:
    """Give a serializer fields of a model by name, several in a string with spaces between them."""

    def declare(serializer: type[S]) -> type[S]:
        meta = {"model": model, "fields": tuple(" ".join(names).split())}
        serializer.Meta = type("Meta", (), meta)  # type: ignore[misc, assignment]
        return serializer

    return declare


def more(*names: str) -> Callable[[type[S]], type[S]]:
    """Give a serializer these fields after those of the serializer that it extends."""

    def declare(serializer: type[S]) -> type[S]:
        inherited = serializer.Meta
        return of(inherited.model, *inherited.fields, *names)(serializer)

    return declare
