"""Conditions on the columns of a table, joined by "and" and "or"; "and" binds more strongly.

In the address and in a form, the condition in each place has four fields: `join`, `column`, `is` and `to`.
In the API a list of alternatives, each a list of conditions that all hold:

    [[{"column": "metadata.domain", "is": "equals", "to": "medical"},
      {"column": "agreement", "is": "below", "to": "0.5"}]]
"""

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from enum import StrEnum
from itertools import count
from typing import Any

from django.db import connection
from django.db.models import Exists, Q, QuerySet, TextChoices
from django.db.models.expressions import Combinable
from django.utils import timezone
from django.utils.dateparse import parse_date
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from annotation.errors import Refusal

MOST_CONDITIONS = 20
LONGEST_VALUE = 500


class ColumnKind(StrEnum):
    """Kinds of values that conditions compare."""

    TEXT = "text"
    NUMBER = "number"
    DATE = "date"
    ANY = "any"
    """Texts and numbers in one column, as metadata is."""


class Relation(TextChoices):
    """Relations of a column's value to that of a condition."""

    EQUALS = "equals", gettext_lazy("is")
    DIFFERS = "differs", gettext_lazy("is not")
    CONTAINS = "contains", gettext_lazy("contains")
    LACKS = "lacks", gettext_lazy("does not contain")
    AT_LEAST = "at_least", gettext_lazy("at least")
    AT_MOST = "at_most", gettext_lazy("at most")
    ABOVE = "above", gettext_lazy("above")
    BELOW = "below", gettext_lazy("below")
    PRESENT = "present", gettext_lazy("is present")
    MISSING = "missing", gettext_lazy("is missing")


_BOUNDS = {Relation.AT_LEAST: "gte", Relation.AT_MOST: "lte", Relation.ABOVE: "gt", Relation.BELOW: "lt"}
_WITHOUT_VALUE = (Relation.PRESENT, Relation.MISSING)
_PARTS = (Relation.CONTAINS, Relation.LACKS)
_OPPOSITES: Mapping[str, str] = {
    Relation.DIFFERS: Relation.EQUALS,
    Relation.LACKS: Relation.CONTAINS,
    Relation.MISSING: Relation.PRESENT,
}
"""Negative relations, and what none of several values must meet."""
_NOT_OF: Mapping[ColumnKind, Collection[str]] = {
    ColumnKind.TEXT: _BOUNDS.keys(),
    ColumnKind.NUMBER: _PARTS,
    ColumnKind.DATE: _PARTS,
}
"""Relations that values of a kind do not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """The value of a column that conditions compare."""

    kind: ColumnKind
    value: Combinable
    """Null where the row has none."""
    number: Combinable | None = None
    """Of values of any kind: as a number, null where it is none."""
    parts: QuerySet[Any] | None = None
    """Rows with the value that belong to the row of the outer query, such as responses to a comparison. One
    of them meets a condition; a negative relation holds where none meets its opposite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCondition:
    """One condition: the name of a column, a relation, and a value where the relation takes one."""

    column: str
    relation: str
    value: str = ""


Alternatives = Sequence[Sequence[TableCondition]]
"""Rows match that meet all conditions of one of them; without any, all rows match."""


def from_query(query: Mapping[str, Any]) -> list[list[TableCondition]]:
    """Return the conditions of an address. Places without a column are left out."""
    getlist = getattr(query, "getlist", None)
    if getlist is None:
        return []
    columns, relations, values, joins = (
        list(map(str, getlist(name))) for name in ("column", "is", "to", "join")
    )
    alternatives: list[list[TableCondition]] = [[]]
    for place, column in enumerate(columns[: 2 * MOST_CONDITIONS]):
        if not column:
            continue
        if place < len(joins) and joins[place] == "or" and alternatives[-1]:
            alternatives.append([])
        relation = relations[place] if place < len(relations) else Relation.EQUALS
        value = values[place] if place < len(values) else ""
        alternatives[-1].append(TableCondition(column=column, relation=relation, value=value.strip()))
    return [conditions for conditions in alternatives if conditions]


def to_pairs(alternatives: Alternatives) -> list[tuple[str, str]]:
    """Return the fields of an address that hold these conditions."""
    pairs = []
    for number, conditions in enumerate(alternatives):
        for place, condition in enumerate(conditions):
            pairs += [
                ("join", "or" if number and not place else "and"),
                ("column", condition.column),
                ("is", condition.relation),
                ("to", condition.value),
            ]
    return pairs


def from_json(text: str) -> list[list[TableCondition]]:
    """Return the conditions of the API. Refuses anything but a list of lists of conditions."""
    try:
        alternatives = json.loads(text)
    except ValueError:
        alternatives = None
    fields = {"column", "is", "to"}
    if not (
        isinstance(alternatives, list)
        and all(isinstance(each, list) and each for each in alternatives)
        and all(
            isinstance(condition, dict)
            and {"column", "is"} <= set(condition) <= fields
            and all(isinstance(value, str | int | float) for value in condition.values())
            and condition["column"]
            for each in alternatives
            for condition in each
        )
    ):
        raise Refusal(
            "invalid_conditions",
            _("Conditions are a list of alternatives, each a list of objects with column, is and to."),
            field="conditions",
        )
    return [
        [
            TableCondition(
                column=str(each["column"]), relation=str(each["is"]), value=str(each.get("to", "")).strip()
            )
            for each in conditions
        ]
        for conditions in alternatives
    ]


def matching_conditions(
    rows: QuerySet[Any], alternatives: Alternatives, operands: Mapping[str, Operand]
) -> QuerySet[Any]:
    """Return the rows that meet all conditions of one of the alternatives.

    operands: by name of the column. Refuses unknown columns and relations, relations that the kind of a
    column does not have, values that it does not have, and too many conditions.
    """
    if sum(map(len, alternatives)) > MOST_CONDITIONS:
        raise Refusal(
            "too_many_conditions",
            _("A filter has at most %(most)s conditions."),
            field="conditions",
            most=MOST_CONDITIONS,
        )
    names = count()
    any_of = Q(pk__in=[]) if alternatives else Q()
    for conditions in alternatives:
        all_of = Q()
        for condition in conditions:
            operand = operands.get(condition.column)
            if operand is None:
                raise Refusal(
                    "unknown_column",
                    _("There is no column %(column)s. Choose another."),
                    field="column",
                    column=condition.column[:80],
                )
            rows, met = _met(rows, condition, operand, f"condition_{next(names)}")
            all_of &= met
        any_of |= all_of
    return rows.filter(any_of)


def _met(
    rows: QuerySet[Any], condition: TableCondition, operand: Operand, name: str
) -> tuple[QuerySet[Any], Q]:
    """Return the rows with the value under a name, and the condition on it.

    The condition is true or false for every row, never null: Django adds to the negation of a column what
    SQL needs for it, and nothing to that of an expression.
    """
    relation = condition.relation
    if operand.parts is not None:
        opposite = _OPPOSITES.get(relation)
        asked = replace(condition, relation=opposite or relation)
        parts, met = _met(operand.parts, asked, replace(operand, parts=None), name)
        some = Q(Exists(parts.filter(met)))
        return rows, ~some if opposite else some
    if relation not in Relation.values or relation in _NOT_OF.get(operand.kind, ()):
        raise Refusal(
            "unknown_relation",
            _("The column %(column)s has no relation “%(relation)s”. Choose another."),
            field="is",
            column=condition.column,
            relation=_label(relation),
        )
    rows = rows.alias(**{name: operand.value})
    absent = Q(**{f"{name}__isnull": True})
    if operand.kind in (ColumnKind.TEXT, ColumnKind.ANY):
        absent |= Q(**{name: ""})
    if relation in _WITHOUT_VALUE:
        return rows, absent if relation == Relation.MISSING else ~absent
    value = condition.value
    if not value or len(value) > LONGEST_VALUE or "\0" in value:
        raise Refusal(
            "condition_without_value",
            _("Enter a value of up to %(most)s characters for %(column)s."),
            field="to",
            most=LONGEST_VALUE,
            column=condition.column,
        )
    if relation in _PARTS:
        part = ~absent & _contains(name, value)
        return rows, part if relation == Relation.CONTAINS else absent | ~_contains(name, value)
    if relation in _BOUNDS:
        rows, name = _as_number(rows, operand, name)
        return rows, ~Q(**{f"{name}__isnull": True}) & _bound(
            condition, operand, name, _BOUNDS[Relation(relation)]
        )
    rows, equal = _equal(rows, condition, operand, name)
    return rows, equal if relation == Relation.EQUALS else ~equal


def _equal(
    rows: QuerySet[Any], condition: TableCondition, operand: Operand, name: str
) -> tuple[QuerySet[Any], Q]:
    present = ~Q(**{f"{name}__isnull": True})
    match operand.kind:
        case ColumnKind.TEXT:
            return rows, present & Q(**{name: condition.value})
        case ColumnKind.ANY:
            equal = present & Q(**{name: condition.value})
            number = _number(condition.value)
            if number is not None:
                rows, numbers = _as_number(rows, operand, name)
                equal |= ~Q(**{f"{numbers}__isnull": True}) & Q(**{numbers: number})
            return rows, equal
        case ColumnKind.NUMBER:
            return rows, present & Q(**{name: _required_number(condition)})
    begins, ends = _day(condition)
    return rows, present & Q(**{f"{name}__gte": begins, f"{name}__lt": ends})


def _as_number(rows: QuerySet[Any], operand: Operand, name: str) -> tuple[QuerySet[Any], str]:
    if operand.number is None:
        return rows, name
    return rows.alias(**{f"{name}_number": operand.number}), f"{name}_number"


def _bound(condition: TableCondition, operand: Operand, name: str, lookup: str) -> Q:
    if operand.kind == ColumnKind.DATE:
        begins, ends = _day(condition)
        # A day is at least itself, and above it is what comes after its end.
        lookup, moment = {
            "gte": ("gte", begins),
            "lt": ("lt", begins),
            "gt": ("gte", ends),
            "lte": ("lt", ends),
        }[lookup]
        return Q(**{f"{name}__{lookup}": moment})
    return Q(**{f"{name}__{lookup}": _required_number(condition)})


def _contains(name: str, value: str) -> Q:
    """Ask for a text, without regard to case."""
    if connection.vendor == "sqlite":
        # LIKE of SQLite takes small and large letters for the same in ASCII alone.
        return Q(**{f"{name}__iregex": re.escape(value)})
    return Q(**{f"{name}__icontains": value})


def _number(text: str) -> float | None:
    """Return a number, or a percentage as a share; None for anything else."""
    text = text.strip()
    share = 100 if text.endswith("%") else 1
    try:
        number = float(text.removesuffix("%")) / share
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None


def _required_number(condition: TableCondition) -> float:
    number = _number(condition.value)
    if number is None:
        raise Refusal(
            "condition_needs_number",
            _("%(column)s is compared with numbers. Enter a number, not “%(value)s”."),
            field="to",
            column=condition.column,
            value=condition.value[:80],
        )
    return number


def _day(condition: TableCondition) -> tuple[datetime, datetime]:
    """Return the beginning and the end of a day, by the server's clock."""
    try:
        day = parse_date(condition.value)
    except ValueError:
        day = None
    if day is None or not date(1900, 1, 1) <= day <= date(9000, 1, 1):
        raise Refusal(
            "condition_needs_date",
            _("%(column)s is compared with days. Enter one as 2026-11-28, not “%(value)s”."),
            field="to",
            column=condition.column,
            value=condition.value[:80],
        )
    here = timezone.get_default_timezone()
    begins = datetime.combine(day, time.min, tzinfo=here)
    return begins, datetime.combine(day + timedelta(days=1), time.min, tzinfo=here)


def _label(relation: str) -> str:
    return str(Relation(relation).label) if relation in Relation.values else relation[:40]
