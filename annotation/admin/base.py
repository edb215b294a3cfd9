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


class WrittenOnceAdmin(BoundedAdmin):
    """Rows that services write. Here they are found and read, and neither added, changed nor deleted."""

    actions: Sequence[str] | None = None

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
