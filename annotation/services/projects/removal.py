"""The bin of projects: delete one, bring it back within 30 days, and remove it for good after them.

A project of which a snapshot holds annotations stays for the record, in no list.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from django.apps import apps
from django.db import connection, models, transaction
from django.db.models import Count, Q, QuerySet
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from annotation.choices import Purpose, Role
from annotation.errors import Refusal
from annotation.models import Comparison, Completion, Judgment, Project, User
from annotation.selectors import access
from annotation.services import audit
from annotation.services.changes import references_from_outside

IN_BIN = timedelta(days=30)
"""For this long a deleted project can be brought back."""

_BATCH = 500
_Rows = dict[type[models.Model], set[int]]


def contents_of(project: Project) -> dict[str | Promise, int]:
    """Return what goes with a project, in words, with its number; what there is none of is left out."""
    judgments = Judgment.everything.filter(comparison__project=project).aggregate(
        people=Count("pk", filter=Q(annotator__is_machine=False, imported_from__isnull=True)),
        imported=Count("pk", filter=Q(annotator__is_machine=False, imported_from__isnull=False)),
        machines=Count("pk", filter=Q(annotator__is_machine=True)),
    )
    comparisons = Comparison.objects.filter(project=project).exclude(purpose=Purpose.DELETED)
    counts: dict[str | Promise, int] = {
        gettext_lazy("annotations by people"): judgments["people"],
        gettext_lazy("imported annotations"): judgments["imported"],
        gettext_lazy("annotations by AI annotators"): judgments["machines"],
        gettext_lazy("prompts"): project.prompts.count(),
        gettext_lazy("responses"): Completion.objects.filter(prompt__project=project).count(),
        gettext_lazy("comparisons"): comparisons.count(),
        gettext_lazy("members"): project.memberships.count(),
    }
    return {what: number for what, number in counts.items() if number}


@transaction.atomic
def delete_project(*, project: Project, deleted_by: User) -> None:
    """Put a project into the bin: no page opens it, and it hands out no work.

    Within 30 days a manager of it can bring it back.
    """
    access.refuse_unless_manager(deleted_by, project, "manager_deletes_project")
    project = Project.objects.select_for_update(no_key=True).get(pk=project.pk)
    if project.deleted_at is not None:
        raise Refusal("project_deleted", _("The project is in the bin already."), field="project")
    details = {str(what): number for what, number in contents_of(project).items()}
    Project.objects.filter(pk=project.pk).update(is_incomplete=True, deleted_at=timezone.now())
    audit.record(action="project.delete", subject=project, actor=deleted_by, project=project, details=details)


def bin_for(user: User) -> QuerySet[Project]:
    """Return the deleted projects that a person may bring back, those deleted last first."""
    deleted = Project.objects.filter(deleted_at__gt=timezone.now() - IN_BIN).order_by("-deleted_at")
    if user.is_superuser:
        return deleted
    return deleted.filter(memberships__user=user, memberships__role=Role.MANAGER)


@transaction.atomic
def restore_project(*, project: Project, restored_by: User) -> Project:
    """Bring a project back from the bin. Refuses one that is not in it, or has been there for 30 days."""
    access.refuse_unless_manager(restored_by, project, "manager_deletes_project")
    project = Project.objects.select_for_update(no_key=True).get(pk=project.pk)
    if project.deleted_at is None or timezone.now() - project.deleted_at >= IN_BIN:
        raise Refusal(
            "project_not_in_bin",
            _("The project is not in the bin. It stays there for %(days)s days."),
            field="project",
            days=IN_BIN.days,
        )
    project.is_incomplete, project.deleted_at = False, None
    project.save(update_fields=["is_incomplete", "deleted_at"])
    audit.record(action="project.undelete", subject=project, actor=restored_by, project=project)
    return project


def empty_bin(*, now: datetime | None = None) -> int:
    """Remove for good the projects that have been in the bin for 30 days; return how many.

    One of which a snapshot, or anything else outside, holds annotations stays for the record.
    """
    old = Project.objects.filter(deleted_at__lte=(now or timezone.now()) - IN_BIN)
    removed = 0
    for project in old:
        if not is_on_record(project):
            remove_project(project)
            removed += 1
    return removed


def is_on_record(project: Project) -> bool:
    """Return True where a snapshot, or anything else outside of `annotation`, holds annotations of it."""
    return any(
        user._base_manager.filter(**{f"{name}__comparison__project": project}).exists()
        for user, name in references_from_outside(Judgment)
    )


# Removal for good: tables are emptied before those that they refer to, a batch a transaction.


def remove_project(project: Project) -> None:
    """Delete a project with everything that refers to it. The audit log keeps its entries."""
    _delete_rows(_rows_of(project))


def _delete_rows(rows: _Rows) -> None:
    for model, field in _emptied(rows):
        for pks in _batches(rows[field.related_model]):
            pointing: models.QuerySet[models.Model] = models.QuerySet(model)
            pointing.filter(**{f"{field.name}__in": pks}).update(**{field.name: None})
    while rows and (free := _unreferred(rows)):
        for model in free:
            for pks in _batches(rows.pop(model)):
                _delete(model, pks)
    # The rest refer to each other in a circle; the database looks at references when a transaction ends.
    with transaction.atomic():
        for model, last in rows.items():
            for pks in _batches(last):
                _delete(model, pks)


def _rows_of(project: Project) -> _Rows:
    """Return the keys of everything that refers to a project, through whatever rows, by model."""
    rows: _Rows = {Project: {project.pk}}
    new: _Rows = {Project: {project.pk}}
    while new:
        seen, new = new, {}
        for model, field in _references():
            for pks in _batches(seen.get(field.related_model, ())):
                referring: models.QuerySet[models.Model] = models.QuerySet(model)
                keys = referring.filter(**{f"{field.name}__in": pks}).values_list("pk", flat=True)
                if added := set(keys) - rows.setdefault(model, set()):
                    rows[model] |= added
                    new.setdefault(model, set()).update(added)
    return {model: keys for model, keys in rows.items() if keys}


def _references() -> Iterator[tuple[type[models.Model], "models.ForeignKey[models.Model]"]]:
    """Yield every foreign key whose rows go with the row that it refers to."""
    return ((model, field) for model, field in _foreign_keys() if not _is_emptied(field))


def _emptied(rows: _Rows) -> Iterator[tuple[type[models.Model], "models.ForeignKey[models.Model]"]]:
    """Yield the foreign keys to tables of `rows` that become empty when the row they refer to goes."""
    return (
        (model, field)
        for model, field in _foreign_keys()
        if _is_emptied(field) and field.related_model in rows
    )


def _foreign_keys() -> Iterator[tuple[type[models.Model], "models.ForeignKey[models.Model]"]]:
    for model in apps.get_models(include_auto_created=True):
        for field in model._meta.concrete_fields:
            if isinstance(field, models.ForeignKey):
                yield model, field


def _is_emptied(field: "models.ForeignKey[models.Model]") -> bool:
    return field.remote_field.on_delete is models.SET_NULL


def _unreferred(rows: _Rows) -> list[type[models.Model]]:
    """Return the models of `rows` to which no other of them refers."""
    referred = {
        field.related_model
        for model, field in _foreign_keys()
        if model in rows and field.related_model is not model
    }
    return [model for model in rows if model not in referred]


def _delete(model: type[models.Model], pks: Sequence[int]) -> None:
    """Delete rows by one statement: models refuse, for no service deletes what they hold."""
    table, column = (connection.ops.quote_name(name) for name in (model._meta.db_table, _key(model)))
    values = [model._meta.pk.get_db_prep_value(pk, connection) for pk in pks]
    places = ", ".join(["%s"] * len(pks))
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {table} WHERE {column} IN ({places})", values)  # noqa: S608 - names of ours


def _key(model: type[models.Model]) -> str:
    return str(model._meta.pk.column)


def _batches(keys: Iterator[int] | set[int] | tuple[int, ...]) -> Iterator[list[int]]:
    """Yield keys in batches, the newest first: a row may refer to an older one of its table."""
    ordered = sorted(keys, reverse=True)
    for start in range(0, len(ordered), _BATCH):
        yield ordered[start : start + _BATCH]
