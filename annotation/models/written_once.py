"""Rows that are written once: neither `save`, `update` nor `delete` changes them afterwards."""

from typing import Any, NoReturn, TypeVar

from django.db import models

from annotation.errors import WrittenOnceError

_Row = TypeVar("_Row", bound=models.Model)


def _refuse(model: type[models.Model], what: str) -> NoReturn:
    raise WrittenOnceError(
        f"A {model._meta.verbose_name} is never {what}. Write a new one with the service that makes them."
    )


class WrittenOnceQuerySet(models.QuerySet[_Row]):
    """Reads and inserts; refuses to change or delete many rows at a time."""

    def update(self, **kwargs: Any) -> int:
        _refuse(self.model, "changed")

    def delete(self) -> tuple[int, dict[str, int]]:
        _refuse(self.model, "deleted")

    def bulk_update(self, *args: Any, **kwargs: Any) -> int:
        _refuse(self.model, "changed")


class WrittenOnce(models.Model):
    """One row that is written once.

    Deleting a project or a prompt that nobody judged still takes its rows along: the
    database's own rules (`PROTECT`) keep whatever a judgment stands on.
    """

    objects = models.Manager.from_queryset(WrittenOnceQuerySet)()

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            _refuse(type(self), "changed")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        _refuse(type(self), "deleted")
