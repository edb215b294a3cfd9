"""Parts of a project that annotators choose from: categories, criteria, and the order of its questions."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Max, ProtectedError
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from annotation.choices import CategoryScope
from annotation.errors import Refusal
from annotation.models import Category, Criterion, Judgment, Project, ProjectQuestion, User
from annotation.services import audit
from annotation.services.people.shortcuts import screen_keys
from annotation.services.projects.project_questions import require_order, require_unneeded

Question = TypeVar("Question", Category, Criterion)
Ordered = TypeVar("Ordered", Category, Criterion, ProjectQuestion)

_CHOSEN_ONCE: Mapping[type[Any], str] = {Category: "scope", Criterion: "scale"}
"""Field on which spans or ratings depend: fixed at creation, like the key."""


def add_question(
    *, kind: type[Question], project: Project, key: str, values: Mapping[str, Any], changed_by: User
) -> Question:
    """Add a category or criterion after the others. Refuses a key that is in use, else as `set_category`."""
    with transaction.atomic():
        _lock(project)
        if kind._default_manager.filter(project=project, key=key).exists():
            raise Refusal(
                "key_in_use",
                _("The key %(key)s is in use. Choose another, or change what has it."),
                field="key",
                key=key,
            )
        return _set(kind, project, key, values, changed_by)


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


def archive_question(*, question: Ordered, archived: bool, changed_by: User) -> Ordered:
    """Archive a category, criterion or question, or restore it: annotations keep it, new ones go without."""
    if question.is_archived == archived:
        return question
    if isinstance(question, ProjectQuestion):
        _require_alone(question, archived=archived)
    question.is_archived = archived
    with transaction.atomic():
        question.save(update_fields=["is_archived"])
        _write_down("archive" if archived else "restore", question, changed_by)
    return question


def order_questions(
    *, kind: type[Ordered], project: Project, keys: Sequence[str], changed_by: User
) -> list[Ordered]:
    """Put the categories, criteria or questions of a project in the order of `keys`.

    Refuses all but each key once, and a question before the one whose answer shows it.
    """
    with transaction.atomic():
        _lock(project)
        rows = {row.key: row for row in kind._default_manager.filter(project=project)}
        if sorted(keys) != sorted(rows):
            raise Refusal(
                "key_named_twice",
                _("Name each key once: %(keys)s."),
                field="keys",
                keys=", ".join(sorted(rows)),
            )
        if issubclass(kind, ProjectQuestion):
            require_order(project, keys)
        for position, key in enumerate(keys, start=1):
            if rows[key].position != position:
                rows[key].position = position
                rows[key].save(update_fields=["position"])
        audit.record(
            action=f"{kind._meta.model_name}.order",
            subject=project,
            actor=changed_by,
            project=project,
            details={"keys": list(keys)},
        )
    return [rows[key] for key in keys]


def move_question(*, question: Ordered, by: int, changed_by: User) -> None:
    """Move a category, criterion or question up (-1) or down (+1) by one place. At the end it stays.

    A sub-category moves among those of its category.
    """
    kind = type(question)
    with transaction.atomic():
        _lock(question.project)
        ordered = list(kind._default_manager.filter(project=question.project).order_by("position", "id"))
        keys = [row.key for row in ordered]
        above = getattr(question, "parent_id", None)
        peers = [row.key for row in ordered if getattr(row, "parent_id", None) == above]
        old = peers.index(question.key)
        other = peers[min(max(old + by, 0), len(peers) - 1)]
        if other != question.key:
            first, second = keys.index(question.key), keys.index(other)
            keys[first], keys[second] = other, question.key
            order_questions(kind=kind, project=question.project, keys=keys, changed_by=changed_by)


def delete_question(*, question: Category | Criterion | ProjectQuestion, deleted_by: User) -> None:
    """Ask no more by a category or criterion. Refuses one that somebody has used, naming how many have."""
    if isinstance(question, ProjectQuestion):
        require_unneeded(question, for_deletion=True)
    if isinstance(question, Category):
        _require_unnamed(question)
    if isinstance(question, Category) and question.parts.exists():
        raise Refusal(
            "category_has_parts",
            _("“%(label)s” has sub-categories. Move or delete them first."),
            label=question.label,
        )
    with transaction.atomic():
        _write_down("delete", question, deleted_by)
        try:
            with transaction.atomic():
                question.delete()
        except ProtectedError:
            used = _uses(question)
            raise Refusal(
                "question_in_use",
                ngettext(
                    "%(number)s annotation uses “%(label)s”: it cannot be deleted. Archive it instead.",
                    "%(number)s annotations use “%(label)s”: it cannot be deleted. Archive it instead.",
                    used,
                ),
                number=used,
                label=question.label,
            ) from None


def _require_unnamed(category: Category) -> None:
    """Refuse to delete a category that a question is asked of: without it, it would be asked of none."""
    asked = ProjectQuestion.objects.filter(project=category.project_id).exclude(categories=[])
    naming = next((row for row in asked if category.key in row.categories), None)
    if naming is not None:
        raise Refusal(
            "category_in_question",
            _("“%(key)s” is asked of spans of “%(label)s”. Change that question, or archive the category."),
            key=naming.key,
            label=category.label,
        )


def _require_alone(question: ProjectQuestion, *, archived: bool) -> None:
    """Refuse to archive what shows another question, and to restore what an archived one shows."""
    if archived:
        require_unneeded(question)
    elif question.shown_when is not None and question.shown_when.is_archived:
        raise Refusal(
            "question_shown_by_archived",
            _("“%(key)s” shows it and is archived. Restore that question first."),
            key=question.shown_when.key,
        )


def _uses(question: Category | Criterion | ProjectQuestion) -> int:
    """Count the annotations, with their earlier versions, that use a category, criterion or question."""
    if isinstance(question, ProjectQuestion):
        return Judgment.everything.filter(answers__version__question=question).distinct().count()
    if isinstance(question, Criterion):
        return Judgment.everything.filter(ratings__criterion=question).distinct().count()
    marked = Judgment.everything.filter(span_flags__category=question).order_by().values("pk")
    missed = Judgment.everything.filter(missing_info__category=question).order_by().values("pk")
    suggested = Judgment.everything.filter(help_after__decisions__suggestion__category=question)
    return marked.union(missed, suggested.order_by().values("pk")).count()


def _lock(project: Project) -> None:
    """Make those who change the questions at once wait for each other."""
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)


def _set(
    kind: type[Question], project: Project, key: str, values: Mapping[str, Any], changed_by: User
) -> Question:
    with transaction.atomic():
        # Two people who add one at once get different positions.
        _lock(project)
        rows = kind._default_manager.filter(project=project)
        row = rows.filter(key=key).first()
        if row is None:
            last = rows.aggregate(last=Max("position"))["last"] or 0
            row = kind(project=project, key=key, position=last + 1)
        if isinstance(values.get("parent"), str):
            values = {**values, "parent": _category_named(project, values["parent"])}
        once = _CHOSEN_ONCE[kind]
        if row.pk is not None and once in values and values[once] != getattr(row, once):
            raise Refusal(
                "fixed_at_creation", _("This was fixed at creation: annotations depend on it."), field=once
            )
        shortcut_before = getattr(row, "shortcut", "")
        changed = [name for name in values if row.pk is not None and getattr(row, name) != values[name]]
        before = {name: str(getattr(row, name)) for name in changed}
        for name, value in values.items():
            setattr(row, name, value)
        if isinstance(row, Category) and row.pk is None and row.parent is not None:
            # One of a group looks like it, unless it says otherwise.
            row.colour = values.get("colour", row.parent.colour)
            row.polarity = values.get("polarity", row.parent.polarity)
        _require_free_shortcut(row, shortcut_before)
        try:
            row.full_clean()
        except ValidationError as error:
            field, messages = next(iter(error.message_dict.items()))
            raise Refusal(
                "invalid_question", " ".join(messages), field=None if field == "__all__" else field
            ) from None
        row.save()
        after = {name: str(getattr(row, name)) for name in changed}
        _write_down("set", row, changed_by, {"from": before, "to": after} if changed else {})
    return row


def _category_named(project: Project, key: str) -> Category | None:
    """Return the category of a key; None for an empty one."""
    if not key:
        return None
    category = Category.objects.filter(project=project, key=key).first()
    if category is None:
        raise Refusal(
            "unknown_parent_category",
            _("The project has no category %(key)s. Name one of its categories of spans."),
            field="parent",
            key=key,
        )
    return category


def _require_free_shortcut(row: Category | Criterion, before: str) -> None:
    """Refuse a key that another category of the project has, or that the labelling screen uses.

    A category from before the second rule keeps its key.
    """
    if not isinstance(row, Category) or not row.shortcut:
        return
    taken = screen_keys()
    if row.scope == CategoryScope.SPAN and row.shortcut != before and row.shortcut.lower() in taken:
        raise Refusal(
            "key_of_screen",
            _("The labelling screen uses the key %(key)s. Choose another; it uses %(taken)s."),
            field="shortcut",
            key=row.shortcut,
            taken=" ".join(taken),
        )
    holder = Category.objects.filter(project=row.project, shortcut=row.shortcut).exclude(pk=row.pk).first()
    if holder is not None:
        raise Refusal(
            "key_in_use",
            _("“%(label)s” has the key %(key)s already. Choose another."),
            field="shortcut",
            label=holder.label,
            key=row.shortcut,
        )


def _write_down(
    verb: str,
    row: Category | Criterion | ProjectQuestion,
    actor: User,
    values: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    audit.record(
        action=f"{row._meta.model_name}.{verb}",
        subject=row,
        actor=actor,
        project=row.project,
        details={"key": row.key, **values},
    )
