"""A table of rows with filters, search, chosen columns and pages, all of it in the address.

Pages begin after the last row of the page before: by primary key, so the millionth row costs as much as the
first, and rows that arrive meanwhile are neither shown twice nor left out. Sorted by a column, every matching
row is read for a page.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from django.db.models import F, Q, QuerySet
from django.db.models.expressions import Combinable
from django.http import QueryDict
from django.utils.functional import Promise

from annotation.models import Project

ROWS_ON_A_PAGE = 50
COUNTED = 1000
"""Matching rows are counted up to this number."""
COUNTED_IN_SEARCH = 100
"""Up to this number where a search text has to be looked for in every row."""

Choice = tuple[str, str | Promise]


@dataclass(frozen=True, slots=True)
class Cell:
    """A value of a row: text, where it leads, and a badge's tone if it is a state."""

    text: Any
    address: str = ""
    tone: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its heading and the cell of a row."""

    name: str
    label: str | Promise
    cell: Callable[[Any], Cell]
    sort: Combinable
    """The value that rows are sorted by; never null."""
    number: bool = False
    shown: bool = True
    """Part of the table unless columns are chosen."""


def never(_project: Project, _value: str) -> bool:
    """Return False."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A filter: the values to choose from, and the rows that a value leaves."""

    name: str
    label: str | Promise
    choices: Callable[[Project], Sequence[Choice]]
    apply: Callable[[QuerySet[Any], Project, str], QuerySet[Any]]
    collects: Callable[[Project, str], bool] = never
    """True where the rows of a value lie far from each other or from the newest: all of them are read and
    sorted for a page, instead of walking the table by age until the page is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A bulk action on chosen rows: its name in the address, and its label."""

    name: str
    label: str | Promise
    icon: str
    value: str | Promise = ""
    """Label of the value that it takes; empty for none."""
    about: str | Promise = ""
    """Sentences for the page that asks for confirmation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The declaration of a table."""

    name: str
    title: str | Promise
    empty: str | Promise
    rows: Callable[[Project], QuerySet[Any]]
    columns: tuple[Column, ...]
    filters: tuple[Filter, ...] = ()
    search: Callable[[QuerySet[Any], str], tuple[QuerySet[Any], bool]] | None = None
    """The rows with a text, and True where their keys are collected as for `Filter.collects`."""
    actions: tuple[Action, ...] = ()
    about: str | Promise = ""
    """Which rows are in it, where other pages count others."""


@dataclass(frozen=True, slots=True)
class Field:
    """A filter as its form field shows it."""

    name: str
    label: str | Promise
    choices: Sequence[Choice]
    value: str


@dataclass(frozen=True)
class View:
    """A table as an address asks for it. Values that do not exist are ignored."""

    table: Table
    project: Project
    query: Mapping[str, Any] = field(default_factory=QueryDict)

    @cached_property
    def text(self) -> str:
        """Return the search text."""
        return str(self.query.get("text", "")).strip()[:200]

    @cached_property
    def fields(self) -> list[Field]:
        """Return the filters with the values of the address."""
        fields = []
        for table_filter in self.table.filters:
            choices = table_filter.choices(self.project)
            value = str(self.query.get(table_filter.name, ""))
            known = {str(choice) for choice, _ in choices}
            fields.append(
                Field(table_filter.name, table_filter.label, choices, value if value in known else "")
            )
        return fields

    @cached_property
    def columns(self) -> list[Column]:
        """Return the columns to show: those of the address, else the usual ones."""
        getlist = getattr(self.query, "getlist", None)
        chosen = set(getlist("columns") if getlist else ())
        columns = [column for column in self.table.columns if column.name in chosen]
        return columns or [column for column in self.table.columns if column.shown]

    @cached_property
    def oldest_first(self) -> bool:
        """Return True where the address asks for the oldest rows first."""
        return self.query.get("order") == "oldest"

    @cached_property
    def sorted_by(self) -> Column | None:
        """Return the column that the address sorts by; None where rows come by age."""
        name = str(self.query.get("order", "")).removeprefix("-")
        return next((column for column in self.table.columns if column.name == name), None)

    @property
    def descends(self) -> bool:
        """Return True where the largest values of the sorted column come first."""
        return str(self.query.get("order", "")).startswith("-")

    @property
    def order(self) -> str:
        """Return the order as the address names it; empty for the newest first."""
        if self.sorted_by is not None:
            return f"-{self.sorted_by.name}" if self.descends else self.sorted_by.name
        return "oldest" if self.oldest_first else ""

    @property
    def headings(self) -> list[tuple[Column, str, str]]:
        """Return each shown column with the query that sorts by it and its direction as `aria-sort` names it.

        A column is sorted upwards first, one of numbers downwards; the link of the sorted one turns it round.
        """
        headings = []
        for column in self.columns:
            is_sorted = column is self.sorted_by
            downwards = not self.descends if is_sorted else column.number
            direction = ("descending" if self.descends else "ascending") if is_sorted else ""
            order = f"-{column.name}" if downwards else column.name
            headings.append((column, self._query_with(order), direction))
        return headings

    @cached_property
    def _matching(self) -> tuple[QuerySet[Any], bool]:
        rows, collects = self.table.rows(self.project), False
        for table_filter, shown in zip(self.table.filters, self.fields, strict=True):
            if shown.value:
                rows = table_filter.apply(rows, self.project, shown.value)
                collects = collects or table_filter.collects(self.project, shown.value)
        if self.text and self.table.search is not None:
            rows, far = self.table.search(rows, self.text)
            collects = collects or far
        return rows, collects

    @property
    def matching(self) -> QuerySet[Any]:
        """Return the rows that filters and search leave, in no order."""
        return self._matching[0]

    @property
    def _collects(self) -> bool:
        return self._matching[1]

    @property
    def counted_up_to(self) -> int:
        """Return the number up to which matching rows are counted."""
        return COUNTED_IN_SEARCH if self.text and not self._collects else COUNTED

    @cached_property
    def count(self) -> int:
        """Return the number of matching rows, at most one more than `counted_up_to`."""
        if self._collects:
            return len(self._collected)
        # A text that is common among the newest need not be so among the oldest.
        rows = self.matching.order_by("-pk") if self.text else self.matching.order_by()
        return int(rows.values("pk")[: self.counted_up_to + 1].count())

    @property
    def counted_to_the_end(self) -> bool:
        """Return False where more rows match than are counted."""
        return self.count <= self.counted_up_to

    @cached_property
    def _collected(self) -> list[int]:
        return self._keys_of(self.matching, COUNTED + 1)

    def _keys_of(self, rows: QuerySet[Any], most: int, *, after: int | None = None) -> list[int]:
        rows = self._with_value(rows)
        if after is not None:
            rows = rows.filter(self._follows(after))
        if self.sorted_by is not None:
            ordered = rows.order_by(*(("-sort_value", "-pk") if self.descends else ("sort_value", "pk")))
        else:
            # By a sum, as PostgreSQL would walk the table for an order that an index has.
            order = F("pk") + 0 if self._collects else F("pk")
            ordered = rows.order_by(order if self.oldest_first else order.desc())
        return list(ordered.values_list("pk", flat=True)[:most])

    @cached_property
    def _page(self) -> tuple[list[Any], bool]:
        text = str(self.query.get("after", ""))
        after = int(text) if text.isdecimal() and len(text) < 19 else None
        # Keys alone are sorted: databases sort whole rows of many matches, with what is counted for each.
        shared = self._collects and after is None
        keys = self._collected if shared else self._keys_of(self.matching, ROWS_ON_A_PAGE + 1, after=after)
        page = {row.pk: row for row in self.table.rows(self.project).filter(pk__in=keys[:ROWS_ON_A_PAGE])}
        return [page[key] for key in keys if key in page], len(keys) > ROWS_ON_A_PAGE

    def _with_value(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.annotate(sort_value=self.sorted_by.sort) if self.sorted_by else rows

    def _follows(self, key: int) -> Q:
        """Return the condition of the rows after that of a key; of none where that row is gone."""
        if self.sorted_by is None:
            return Q(pk__gt=key) if self.oldest_first else Q(pk__lt=key)
        last = self._with_value(self.table.rows(self.project).filter(pk=key))
        value = last.values_list("sort_value", flat=True).first()
        if value is None:
            return Q(pk__in=[])
        side = "lt" if self.descends else "gt"
        return Q(**{f"sort_value__{side}": value}) | Q(**{"sort_value": value, f"pk__{side}": key})

    @cached_property
    def lines(self) -> list[tuple[int, list[tuple[Column, Cell]]]]:
        """Return the rows of the page: primary key, and the cells by column."""
        return [(row.pk, [(column, column.cell(row)) for column in self.columns]) for row in self._page[0]]

    @property
    def is_first_page(self) -> bool:
        """Return True on the first page."""
        return not self.query.get("after")

    @cached_property
    def address_query(self) -> str:
        """Return what names this view in an address, without the page."""
        return self._query_with(self.order)

    def _query_with(self, order: str) -> str:
        pairs: list[tuple[str, str]] = [(shown.name, shown.value) for shown in self.fields if shown.value]
        if self.text:
            pairs.append(("text", self.text))
        if order:
            pairs.append(("order", order))
        if getattr(self.query, "getlist", None) and self.query.get("columns"):
            pairs += [("columns", column.name) for column in self.columns]
        return urlencode(pairs)

    @property
    def filters_in_use(self) -> int:
        """Return how many filters narrow the rows, the search text left out."""
        return sum(bool(shown.value) for shown in self.fields)

    @property
    def is_filtered(self) -> bool:
        """Return True where a filter or a search text narrows the rows."""
        return bool(self.text) or any(shown.value for shown in self.fields)

    @property
    def next_query(self) -> str:
        """Return the query of the next page; empty on the last."""
        rows, more = self._page
        if not more:
            return ""
        return "&".join(part for part in (self.address_query, f"after={rows[-1].pk}") if part)
