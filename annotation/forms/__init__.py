"""Forms of pages, read into the inputs of the services."""

from collections.abc import Iterable
from typing import Any

from django import forms
from django.db.models import QuerySet


def offer(form: forms.BaseForm, name: str, choices: QuerySet[Any] | Iterable[Any]) -> None:
    """Set what a field offers: rows of a query, or pairs of a value and its label."""
    setattr(form.fields[name], "queryset" if isinstance(choices, QuerySet) else "choices", choices)
