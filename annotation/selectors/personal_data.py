"""All that Rondo keeps about one person, as one JSON document, written row by row."""

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db import models

from annotation.models import Judgment, User

_SECRETS = {"password", "digest", "session_key", "token", "token_secret", "secret", "previous_secret"}
"""Fields that open something: whoever finds the file could use them."""

_SECRET_DATA = {"mfa.authenticator"}
"""Models whose `data` is a secret too."""


def personal_data(user: User) -> Iterator[str]:
    """The document in pieces: the person's own row, then every row that points to it, by model.

    Rows below a judgment (ranks, marks, what was missing) come along; other people appear as keys alone.
    """
    yield '{"person": ' + _written(user)
    related = [(relation.related_model, relation.field.name) for relation in pointing_at_people()]
    below = [
        (relation.related_model, f"{relation.field.name}__annotator")
        for relation in Judgment._meta.related_objects
        if isinstance(relation.field, models.ForeignKey) and relation.related_model is not Judgment
    ]
    for model, field in chain(related, below):
        # Two relations of one model (`started_by`, `closed_by`) differ by their field.
        yield f", {json.dumps(f'{model._meta.label_lower}.{field}')}: ["
        rows = model._base_manager.filter(**{field: user}).order_by("pk").iterator(chunk_size=500)
        for number, row in enumerate(rows):
            yield (", " if number else "") + _written(row)
        yield "]"
    yield "}\n"


def pointing_at_people() -> Iterator[models.ManyToOneRel]:
    """Every foreign key to a person of every app, those too that a person's row cannot be asked for."""
    for relation in User._meta.get_fields(include_hidden=True):
        if isinstance(relation, models.ManyToOneRel) and not relation.related_model._meta.auto_created:
            yield relation


def _written(row: models.Model) -> str:
    hidden = _SECRETS | ({"data"} if row._meta.label_lower in _SECRET_DATA else set())
    fields: dict[str, Any] = {
        field.attname: _plain(getattr(row, field.attname))
        for field in row._meta.concrete_fields
        if field.name not in hidden
    }
    return json.dumps(fields, cls=DjangoJSONEncoder, ensure_ascii=False)


def _plain(value: Any) -> Any:
    return value.name if isinstance(value, models.fields.files.FieldFile) else value
