"""What a project asks annotators to mark and to rate: its categories and criteria."""

from collections.abc import Mapping
from typing import Any, TypeVar

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Max, ProtectedError
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.models import Category, Criterion, Project, User
from annotation.services import audit

Question = TypeVar("Question", Category, Criterion)

_CHOSEN_ONCE: Mapping[type[Any], str] = {Category: "scope", Criterion: "scale"}
"""What marks and ratings go by: it stays as it was first said, like the key."""


def set_category(*, project: Project, key: str, values: Mapping[str, Any], changed_by: User) -> Category:
    """Give a category other values, or add one under a key that is new, after the others.

    Refuses another scope than it has, and a value that a field does not accept, naming the field.
    """
    return _set(Category, project, key, values, changed_by)


def set_criterion(*, project: Project, key: str, values: Mapping[str, Any], changed_by: User) -> Criterion:
    """Give a criterion other values, or add one under a key that is new, after the others.

    Refuses another scale than it has, and a value that a field does not accept, naming the field.
    """
    return _set(Criterion, project, key, values, changed_by)


def delete_question(*, question: Category | Criterion, deleted_by: User) -> None:
    """Ask no more by a category or criterion. Refuses one that somebody has used: a judgment stands on it."""
    with transaction.atomic():
        _write_down("delete", question, deleted_by)
        try:
            with transaction.atomic():
                question.delete()
        except ProtectedError:
            raise Refusal(
                _("Judgments use %(key)s: it cannot be deleted any more.") % {"key": question.key}
            ) from None


def _set(
    kind: type[Question], project: Project, key: str, values: Mapping[str, Any], changed_by: User
) -> Question:
    with transaction.atomic():
        # Two who add one at once wait here for each other, so that both get a place of their own.
        Project.objects.select_for_update(no_key=True).get(pk=project.pk)
        rows = kind._default_manager.filter(project=project)
        row = rows.filter(key=key).first()
        if row is None:
            last = rows.aggregate(last=Max("position"))["last"] or 0
            row = kind(project=project, key=key, position=last + 1)
        once = _CHOSEN_ONCE[kind]
        if row.pk is not None and once in values and values[once] != getattr(row, once):
            raise Refusal(_("This was chosen when it was made: judgments go by it."), field=once)
        for name, value in values.items():
            setattr(row, name, value)
        try:
            row.full_clean()
        except ValidationError as error:
            field, messages = next(iter(error.message_dict.items()))
            raise Refusal(" ".join(messages), field=None if field == "__all__" else field) from None
        row.save()
        _write_down("set", row, changed_by)
    return row


def _write_down(deed: str, row: Category | Criterion, actor: User) -> None:
    audit.record(
        action=f"{row._meta.model_name}.{deed}",
        subject=row,
        actor=actor,
        project=row.project,
        details={"key": row.key},
    )
