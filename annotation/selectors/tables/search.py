"""Full-text search: every word of the query begins a word of the text. An index serves it on PostgreSQL."""

import json
import re
from typing import Any, TypeVar, cast

from django.contrib.postgres.search import SearchQuery, SearchVectorField
from django.db import connection
from django.db.models import Case, F, Func, Model, Q, QuerySet, When

Row = TypeVar("Row", bound=Model)

FEW = 5000
"""Up to so many rows that meet a condition are listed first, and their pages are sorted from the list."""

_SAMPLE, _COMMON = 1000, 50
_MOST_WORDS = 12
_WORD = re.compile(r"\w+")


class _Words(Func):
    """The words of a column, as the index of migration 0021 (annotation) holds them."""

    template = "to_tsvector('simple', %(expressions)s)"
    output_field = SearchVectorField()


def matching(
    rows: QuerySet[Row], text: str, *, column: str, of: type[Model] | None = None, path: str = ""
) -> QuerySet[Row]:
    """Return the rows of which a text has words that begin with those of `text`; without a word in it, all.

    of, column: the model and its column with the text (or a JSON value with texts); the rows' own where `of`
    is left out. path: the field of the rows that leads there. SQLite looks for each word anywhere in a text.
    """
    words = _WORD.findall(text.replace("\0", " "))[:_MOST_WORDS]
    if not words:
        return rows
    field = f"{path}__{column}" if path else column
    if connection.vendor == "postgresql":
        query = SearchQuery(" & ".join(f"{word}:*" for word in words), search_type="raw", config="simple")
        found = (of or rows.model)._default_manager.alias(words_=_Words(F(column))).filter(words_=query)
        few = None if _is_common(found) else few_of(found)
        if few is None:
            # In a CASE, as PostgreSQL then expects many rows and walks: it takes several words to be rare.
            hit = Case(When(words_=query, then=True), default=False)
            walked = rows.alias(words_=_Words(F(field))).alias(hit_=hit).filter(hit_=True)
            return cast("QuerySet[Row]", walked)
        return rows.filter(**{f"{path or 'pk'}__in": few})
    for word in words:
        rows = rows.filter(
            Q(**{f"{field}__icontains": word}) | Q(**{f"{field}__icontains": json.dumps(word)[1:-1]})
        )
    return rows


def _is_common(found: QuerySet[Any]) -> bool:
    """Return True where the newest rows show that many match: listing those would take long."""
    newest = found.model._default_manager.order_by("-pk").values_list("pk", flat=True).first() or 0
    return len(found.filter(pk__gt=newest - _SAMPLE).values_list("pk", flat=True)[:_COMMON]) == _COMMON


def few_of(found: QuerySet[Any]) -> list[int] | None:
    """Return the primary keys of `found`, or None where they are more than `FEW`.

    A page of a table ends after 50 rows. PostgreSQL expects to meet so many soon when it walks the table by
    age, which is so for a condition that many rows meet, and takes minutes for one that few do.
    """
    pks = list(found.order_by().values_list("pk", flat=True)[: FEW + 1])
    return None if len(pks) > FEW else pks
