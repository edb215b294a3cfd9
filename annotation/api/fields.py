"""Declarations of fields in fewer words: the columns of a model."""

from collections.abc import Callable
from typing import Any, TypeVar

from django.db.models import Model
from rest_framework.serializers import ModelSerializer

S = TypeVar("S", bound=ModelSerializer[Any])


def model_fields(*names: str, of: type[Model] | None = None) -> Callable[[type[S]], type[S]]:
    """Give a serializer its fields by name, several in a string with spaces between them.

    of: their model; without one the fields are added to those of the serializer that it extends.
    """

    def declare(serializer: type[S]) -> type[S]:
        inherited = getattr(serializer, "Meta", None)
        model, first = (of, ()) if of or inherited is None else (inherited.model, inherited.fields)
        serializer.Meta = type("Meta", (), {"model": model, "fields": (*first, *" ".join(names).split())})  # type: ignore[misc, assignment]
        return serializer

    return declare
