"""Removal of a demo that is not complete: its rows, in short transactions, and its accounts."""

from collections.abc import Iterator, Sequence

from django.apps import apps
from django.db import connection, models, transaction
from django.db.models import ProtectedError

from annotation.models import Project, User

MANAGER = "manager"
_BATCH = 500
_Rows = dict[type[models.Model], set[int]]


def username(name: str) -> str:
    """Return the name of an account of the demo."""
    return f"demo-{name}"


def is_left_over(account: User) -> bool:
    """Return whether a removed demo left this account, because the audit log names it: nobody can sign in."""
    return not account.is_active and not account.has_usable_password()


def remove_incomplete(slug: str) -> None:
    """Remove the incomplete project with this slug, if there is one, and the accounts of the demo in it.

    The audit log keeps its entries, as of every project that is deleted, and the accounts that it names.
    Tables are emptied before those that they refer to, a batch a transaction.
    """
    project = Project.objects.filter(slug=slug, is_incomplete=True).first()
    if project is None:
        return
    members = User.objects.filter(memberships__project=project, username__startswith=username(""))
    accounts = [account.pk for account in members if not account.has_usable_password()]
    _delete_rows(_rows_of(project))
    for user in User.objects.filter(pk__in=accounts):
        try:
            with transaction.atomic():
                user.delete()
        except ProtectedError:
            user.is_active = False
            user.save(update_fields=["is_active"])


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
