"""Metadata: columns of imported files that nothing else reads, as columns of tables and values of conditions.

A comparison has its own metadata and that of its prompt; where both have a name, its own counts. A prompt
has what its oldest comparison has, where it lacks the name itself. A response has its own metadata, else that
of its prompt, else that of its oldest comparison.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import (
    Case,
    F,
    FloatField,
    Func,
    Model,
    OuterRef,
    Subquery,
    TextField,
    Value,
    When,
)
from django.db.models.expressions import Combinable
from django.db.models.lookups import IsNull

from annotation.models import Candidate, Comparison, Completion, Judgment, Project, Prompt
from annotation.selectors.cached_counts import cached

PREFIX = "metadata."
"""With it the name of a column begins that shows metadata."""
OF_RESPONSES = "response_metadata."
"""The same for a column of comparisons that shows metadata of their responses."""
MOST_NAMES = 100
"""Names of metadata that a project's tables know."""
_MOST_READ = 10_000

NUMBER = r"^\s*[-+]?[0-9]{1,200}(\.[0-9]{0,200})?([eE][-+]?[0-9]{1,2})?\s*$"
"""A number, as a file spells it: tables hold numbers as texts."""


class _MetadataValue(Func):
    """The value under a name of a column of JSON objects; null where it is missing."""

    sqlite: str
    postgresql: str

    def __init__(self, path: str, name: str) -> None:
        super().__init__(F(path), Value(name, output_field=TextField()))

    def as_sqlite(self, compiler: Any, connection: Any, **_context: Any) -> tuple[str, Any]:
        column, name = self._compiled(compiler)
        # No path of JSON: a name may hold quotes, dots and brackets.
        sql = f"(SELECT {self.sqlite} FROM json_each({column[0]}) WHERE key = {name[0]})"  # noqa: S608
        return sql, [*column[1], *name[1]]

    def as_postgresql(self, compiler: Any, connection: Any, **_context: Any) -> tuple[str, list[Any]]:
        column, name = self._compiled(compiler)
        text = f"({column[0]} ->> {name[0]}::text)"
        kind = f"jsonb_typeof({column[0]} -> {name[0]}::text)"
        values = [*column[1], *name[1]]
        sql = self.postgresql.format(text=text, kind=kind)
        return sql, values * (sql.count(text) + sql.count(kind))

    def _compiled(self, compiler: Any) -> list[tuple[str, Sequence[Any]]]:
        return [compiler.compile(expression) for expression in self.source_expressions]


class MetadataText(_MetadataValue):
    """A value of metadata as text: of a text itself, of anything else its JSON."""

    output_field = TextField()
    sqlite = (
        "CASE type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' WHEN 'null' THEN NULL "
        "ELSE CAST(value AS TEXT) END"
    )
    postgresql = "{text}"


class MetadataNumber(_MetadataValue):
    """A value of metadata as a number; null where it is none."""

    output_field = FloatField()
    sqlite = (
        "CASE WHEN type IN ('integer', 'real', 'text') AND CAST(value AS TEXT) REGEXP "
        f"'{NUMBER}' THEN CAST(value AS REAL) END"
    )
    postgresql = (
        "(CASE WHEN {kind} IN ('number', 'string') AND {text} ~ "
        f"'{NUMBER.replace('{', '{{').replace('}', '}}')}' THEN {{text}}::double precision END)"
    )


def value_of(model: type[Model], kind: type[_MetadataValue], name: str) -> Combinable:
    """Return the value of metadata under a name for rows of a model."""
    fallback: Combinable
    if model is Comparison:
        path, fallback = "metadata", kind("prompt__metadata", name)
    elif model is Judgment:
        path, fallback = "comparison__metadata", kind("comparison__prompt__metadata", name)
    elif model is Prompt:
        path, fallback = "metadata", _oldest(kind, name, "prompt")
    elif model is Completion:
        path, fallback = "metadata", _first(kind, name, "prompt__metadata", _oldest_of_completion(kind, name))
    else:
        raise NotImplementedError(model)
    return _first(kind, name, path, fallback)


def _first(kind: type[_MetadataValue], name: str, path: str, fallback: Combinable) -> Combinable:
    # A text in the first place is no number, and not the number in the second.
    has_name = IsNull(MetadataText(path, name), False)
    return Case(When(has_name, then=kind(path, name)), default=fallback)


def _oldest_of_completion(kind: type[_MetadataValue], name: str) -> Combinable:
    return _oldest(kind, name, "candidates__completion")


def _oldest(kind: type[_MetadataValue], name: str, path: str) -> Combinable:
    """Return the value of the oldest comparison that has the name."""
    having = Comparison.objects.filter(**{path: OuterRef("pk")}).annotate(
        value_found=kind("metadata", name), text_found=MetadataText("metadata", name)
    )
    return Subquery(having.filter(text_found__isnull=False).order_by("pk").values("value_found")[:1])


@dataclass(frozen=True, slots=True)
class MetadataName:
    """A name of metadata in a project, and True where all its values are numbers."""

    name: str
    is_number: bool


def metadata_names(project: Project) -> list[MetadataName]:
    """Return the names of the metadata of comparisons and their prompts, in order."""
    return names_for(Comparison, names_in_use(project))


def names_in_use(project: Project) -> Mapping[bool, Sequence[MetadataName]]:
    """Return the names of prompts and comparisons, and under True those of responses, in one query.

    Those of a large project are of a while ago.
    """
    return cached(lambda: _names_in_use(project), "names of metadata by owner", project.pk)


def names_for(model: type[Model], names: Mapping[bool, Sequence[MetadataName]]) -> list[MetadataName]:
    """Return the names of these that rows of a model have, in order. Responses have names of their own
    besides; a candidate has those alone."""
    found: dict[str, bool] = {}
    for is_of_responses in {Completion: (False, True), Candidate: (True,)}.get(model, (False,)):
        for each in names[is_of_responses]:
            found[each.name] = each.is_number and found.get(each.name, True)
    return [MetadataName(name, found[name]) for name in sorted(found)][:MOST_NAMES]


def _names_in_use(project: Project) -> dict[bool, list[MetadataName]]:
    # The names are JSON's own, so they come from the database's functions for it.
    if connection.vendor == "postgresql":
        each = "jsonb_each(CASE jsonb_typeof(metadata) WHEN 'object' THEN metadata ELSE '{}' END)"
        is_number = f"jsonb_typeof(value) IN ('number', 'string') AND (value #>> '{{}}') ~ '{NUMBER}'"
        all_numbers = f"bool_and({is_number})"
    else:
        each = "json_each(metadata)"
        is_number = f"type IN ('integer', 'real', 'text') AND CAST(value AS TEXT) REGEXP '{NUMBER}'"
        all_numbers = f"min({is_number})"
    tables = {model: model._meta.db_table for model in (Prompt, Comparison, Completion)}
    selected = [
        f"SELECT 0 AS kind, metadata FROM {tables[model]} "  # noqa: S608
        "WHERE project_id = %s AND metadata IS NOT NULL"
        for model in (Prompt, Comparison)
    ]
    selected.append(
        f"SELECT 1 AS kind, metadata FROM {tables[Completion]} WHERE metadata IS NOT NULL "  # noqa: S608
        f"AND prompt_id IN (SELECT id FROM {tables[Prompt]} WHERE project_id = %s)"
    )
    names: dict[bool, list[MetadataName]] = {False: [], True: []}
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT kind, key, {all_numbers} "  # noqa: S608
            f"FROM ({' UNION ALL '.join(selected)}) AS texts, {each} AS pairs "
            "GROUP BY kind, key ORDER BY kind, key LIMIT %s",
            [*[project.pk] * len(selected), _MOST_READ],
        )
        for kind, name, are_numbers in cursor.fetchall():
            names[bool(kind)].append(MetadataName(name, bool(are_numbers)))
    return names
