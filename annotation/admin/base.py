"""Shared parts of all pages of the admin."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.db import models
from django.http import HttpRequest

if TYPE_CHECKING:
    # Generic in the type stubs alone: Django's own classes take no parameter.
    ModelAdmin = admin.ModelAdmin[Any]
    TabularInline = admin.TabularInline[Any, Any]
    StackedInline = admin.StackedInline[Any, Any]
    ModelForm = forms.ModelForm[Any]
else:
    ModelAdmin = admin.ModelAdmin
    TabularInline = admin.TabularInline
    StackedInline = admin.StackedInline
    ModelForm = forms.ModelForm


class BoundedAdmin(ModelAdmin):
    """A list whose cost does not grow with the table: one page, no second count of all rows."""

    list_per_page = 50
    show_full_result_count = False
    save_on_top = False


_TO_COMPARISON = {
    "judgment": "judgment__comparison",
    "correction": "correction__judgment__comparison",
    "assignment": "assignment__comparison",
    "reveal": "reveal__assignment__comparison",
}
"""Field of a model → the comparison of the judgment that a row is a part of."""


class WrittenOnceAdmin(BoundedAdmin):
    """Rows that services write. Here they are found and read, and neither added, changed nor deleted.

    Parts of what a calibration session hides are not there until its reveal.
    """

    actions: Sequence[str] | None = None

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Any]:
        rows = super().get_queryset(request)
        names = {field.name for field in self.model._meta.fields}
        comparison = next((path for name, path in _TO_COMPARISON.items() if name in names), None)
        return rows.exclude(**{f"{comparison}__is_sealed": True}) if comparison else rows

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False


def read_only(
    model: type[models.Model],
    columns: str,
    filters: str,
    search: str,
    *,
    related: str = "",
    exclude: str = "",
    inlines: Sequence[type[TabularInline]] = (),
) -> None:
    """Register a model that services write; texts name fields, divided by spaces.

    A list loads what its columns refer to, and `related`.
    """
    relations = [
        field.name for field in model._meta.fields if field.is_relation and field.name in columns.split()
    ]
    options = {
        "list_display": columns.split(),
        "list_filter": filters.split(),
        "list_select_related": [*relations, *related.split()] or False,
        "search_fields": search.split(),
        "exclude": exclude.split(),
        "inlines": inlines,
    }
    admin.site.register(model, type(f"{model.__name__}Admin", (WrittenOnceAdmin,), options))


class WrittenOnceInline(TabularInline):
    """Rows of a `WrittenOnceAdmin` on the page of what they belong to."""

    extra = 0
    can_delete = False
    show_change_link = True

    def has_add_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False
