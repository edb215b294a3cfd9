"""A table of rows with filters, search, chosen columns and pages, all of it in the address.

Pages begin after the last row of the page before: by primary key, so the millionth row costs as much as the
first, and rows that arrive meanwhile are neither shown twice nor left out. Sorted by a column, every matching
row is read for a page.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from django.db import connection
from django.db.models import Exists, F, Max, Min, Model, OuterRef, Q, QuerySet, Subquery, TextField, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Cast, Coalesce, Left, Lower
from django.http import QueryDict
from django.utils.functional import Promise
from django.utils.text import Truncator, format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from annotation.choices import Purpose, Split, WithholdingState
from annotation.errors import Refusal
from annotation.models import (
    Assignment,
    Candidate,
    Comparison,
    Completion,
    CompletionSource,
    Judgment,
    Project,
    Prompt,
    QuestionAnswer,
    SpanFlag,
    TraceStep,
    User,
)
from annotation.selectors.allocation import reservations
from annotation.selectors.cached_counts import cached
from annotation.selectors.configuration import configuration_of
from annotation.selectors.tables.conditions import (
    ColumnKind,
    Operand,
    Relation,
    TableCondition,
    from_query,
    matching_conditions,
    to_pairs,
)
from annotation.selectors.tables.metadata import (
    OF_RESPONSES,
    PREFIX,
    MetadataNumber,
    MetadataText,
    names_for,
    names_in_use,
    value_of,
)
from annotation.selectors.tables.search import few_of, is_common

ROWS_ON_A_PAGE = 50
CARDS = "cards"
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
    value: Combinable | None = None
    """The value that conditions compare, where it is not the one that rows are sorted by."""
    kind: ColumnKind | None = None
    """Of that value; a number for columns of numbers, else a text, where it is not named."""
    as_number: Combinable | None = None
    """Of values of any kind: as a number, null where it is none."""
    parts: QuerySet[Any] | None = None
    """The rows that the value is one of, where a row has several."""

    @property
    def operand(self) -> Operand:
        """Return the value that conditions compare, with its kind."""
        kind = self.kind or (ColumnKind.NUMBER if self.number else ColumnKind.TEXT)
        return Operand(kind=kind, value=self.value or self.sort, number=self.as_number, parts=self.parts)


def never(_project: Project, _value: str) -> bool:
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
class BulkAction:
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
    actions: tuple[BulkAction, ...] = ()
    about: str | Promise = ""
    """Which rows are in it, where other pages count others."""
    has_ways: bool = False
    """The page of a row leads on to the rows before and after it, and opens in the panel beside the table."""
    excerpts: Callable[[Sequence[int]], Mapping[int, Sequence[str]]] | None = None
    """The beginnings of the texts of rows, by their keys, for cards; None for a table without cards."""


@dataclass(frozen=True, slots=True)
class Field:
    """A filter as its form field shows it."""

    name: str
    label: str | Promise
    choices: Sequence[Choice]
    value: str


_METADATA_LENGTH = 120


def _metadata_column(model: type[Model], name: str, *, is_number: bool) -> Column:
    """Return the column of metadata with a name. A row has its values under `_METADATA_VALUES`."""
    text, number = (value_of(model, kind, name) for kind in (MetadataText, MetadataNumber))
    letters = Lower(Left(Coalesce(text, Value("")), _METADATA_LENGTH))

    def cell(row: Any) -> Cell:
        value = getattr(row, _METADATA_VALUES).get(name)
        return Cell("—" if value is None else Truncator(value).chars(_METADATA_LENGTH))

    return Column(
        name=f"{PREFIX}{name}",
        label=name,
        cell=cell,
        sort=Coalesce(number, Value(-1e308)) if is_number else letters,
        number=is_number,
        shown=False,
        value=text,
        kind=ColumnKind.ANY,
        as_number=number,
    )


def _response_metadata_column(name: str, *, is_number: bool) -> Column:
    """Return the column of comparisons with the metadata of their responses, in the order of their numbers.

    Sorted by the largest number, or by the text that comes first in the alphabet.
    """
    text, number = (kind("completion__metadata", name) for kind in (MetadataText, MetadataNumber))
    responses = Candidate.objects.filter(comparison=OuterRef("pk"))
    ends = Max(number) if is_number else Min(Lower(Left(text, _METADATA_LENGTH)))
    end = Subquery(responses.order_by().values("comparison").annotate(end_=ends).values("end_"))
    column = f"{OF_RESPONSES}{name}"

    def cell(row: Any) -> Cell:
        values = getattr(row, _METADATA_VALUES).get(column, ())
        texts = ["—" if value is None else Truncator(value).chars(_METADATA_LENGTH) for value in values]
        return Cell(" · ".join(texts) if any(value is not None for value in values) else "—")

    return Column(
        name=column,
        label=format_lazy("{name} {of_responses}", name=name, of_responses=_OF_RESPONSES),
        cell=cell,
        sort=Coalesce(end, Value(-1e308) if is_number else Value("")),
        number=is_number,
        shown=False,
        value=text,
        kind=ColumnKind.ANY,
        as_number=number,
        parts=responses,
    )


_OF_RESPONSES = gettext_lazy("(responses)")
_METADATA_VALUES = "metadata_values"


@dataclass(frozen=True, slots=True)
class ConditionField:
    """A condition as the form shows it: how it is joined to the one before, and its fields."""

    number: int
    is_or: bool
    condition: TableCondition


@dataclass(frozen=True)
class View:
    """A table as an address asks for it. Values that do not exist are ignored.

    A condition that cannot be met, such as a column of numbers compared with a word, leaves no row:
    `fault` says why.
    """

    table: Table
    project: Project
    query: Mapping[str, Any] = field(default_factory=QueryDict)

    @cached_property
    def all_columns(self) -> list[Column]:
        """Return the columns of the table and those of the project's metadata."""
        model = self.table.rows(self.project).model
        names = names_in_use(self.project)
        metadata = [
            _metadata_column(model, each.name, is_number=each.is_number) for each in names_for(model, names)
        ]
        of_responses = [
            _response_metadata_column(each.name, is_number=each.is_number)
            for each in (names_for(Candidate, names) if model is Comparison else ())
        ]
        return [*self.table.columns, *metadata, *of_responses]

    @cached_property
    def conditions(self) -> list[list[TableCondition]]:
        """Return the conditions of the address."""
        return from_query(self.query)

    @property
    def condition_fields(self) -> list[ConditionField]:
        """Return the conditions in the order of the form, and an empty one to fill in."""
        fields = [
            ConditionField(0, bool(alternative and not place), condition)
            for alternative, conditions in enumerate(self.conditions)
            for place, condition in enumerate(conditions)
        ]
        fields.append(ConditionField(0, False, TableCondition(column="", relation=Relation.EQUALS)))
        return [
            ConditionField(number, each.is_or, each.condition) for number, each in enumerate(fields, start=1)
        ]

    @property
    def relations(self) -> list[Choice]:
        """Return the relations that a condition can have."""
        return list(Relation.choices)

    @cached_property
    def fault(self) -> Refusal | None:
        """Return why the conditions cannot be met; None where they can."""
        return self._matching[2]

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
        # Without a name of metadata in the address nobody looks for its names.
        columns = self.all_columns if any(map(_is_metadata, chosen)) else self.table.columns
        shown = [column for column in columns if column.name in chosen]
        return shown or [column for column in self.table.columns if column.shown]

    @cached_property
    def oldest_first(self) -> bool:
        """Return True where the address asks for the oldest rows first."""
        return self.query.get("order") == "oldest"

    @cached_property
    def sorted_by(self) -> Column | None:
        """Return the column that the address sorts by; None where rows come by age."""
        name = str(self.query.get("order", "")).removeprefix("-")
        columns = self.all_columns if _is_metadata(name) else self.table.columns
        return next((column for column in columns if column.name == name), None)

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
    def has_cards(self) -> bool:
        """Return True where the table can be shown as cards."""
        return self.table.excerpts is not None

    @property
    def is_in_cards(self) -> bool:
        """Return True where the address asks for cards in place of rows."""
        return self.has_cards and self.query.get("layout") == CARDS

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
    def _matching(self) -> tuple[QuerySet[Any], bool, Refusal | None]:
        rows, collects = self.table.rows(self.project), False
        for table_filter, shown in zip(self.table.filters, self.fields, strict=True):
            if shown.value:
                rows = table_filter.apply(rows, self.project, shown.value)
                collects = collects or table_filter.collects(self.project, shown.value)
        if self.text and self.table.search is not None:
            rows, far = self.table.search(rows, self.text)
            collects = collects or far
        if not self.conditions:
            return rows, collects, None
        operands = {column.name: column.operand for column in self.all_columns}
        try:
            return matching_conditions(rows, self.conditions, operands), True, None
        except Refusal as refusal:
            return rows.none(), True, refusal

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
        self._read_metadata(page)
        return [page[key] for key in keys if key in page], len(keys) > ROWS_ON_A_PAGE

    def _read_metadata(self, page: Mapping[int, Any]) -> None:
        """Give the rows of a page the metadata of the shown columns, in one query."""
        names = [column for column in self.columns if column.name.startswith(PREFIX)]
        for row in page.values():
            setattr(row, _METADATA_VALUES, {})
        self._read_metadata_of_responses(page)
        if not names or not page:
            return
        values = {
            f"value_{place}_": column.value for place, column in enumerate(names) if column.value is not None
        }
        rows = self.table.rows(self.project).model._default_manager.filter(pk__in=page)
        for pk, *texts in rows.annotate(**values).values_list("pk", *values):
            getattr(page[pk], _METADATA_VALUES).update(
                (column.name.removeprefix(PREFIX), text)
                for column, text in zip(names, texts, strict=True)
                if text is not None
            )

    def _read_metadata_of_responses(self, page: Mapping[int, Any]) -> None:
        """Give comparisons the metadata of their responses for the shown columns, in one query.

        A value that names the model of a response is not shown, as on the comparison's page.
        """
        names = [column for column in self.columns if column.name.startswith(OF_RESPONSES)]
        if not names or not page:
            return
        values = {f"value_{place}_": column.value for place, column in enumerate(names)}
        responses = Candidate.objects.filter(comparison__in=page).order_by("comparison", "index")
        fields = ("comparison", "completion__source__name", *values)
        rows = list(responses.annotate(**values).values_list(*fields))
        models: dict[int, set[str]] = {}
        for pk, model, *_texts in rows:
            models.setdefault(pk, set()).add(model)
        for pk, _model, *texts in rows:
            of_row = getattr(page[pk], _METADATA_VALUES)
            for column, text in zip(names, texts, strict=True):
                shown = _("(names the model of a response)") if text in models[pk] else text
                of_row.setdefault(column.name, []).append(shown)

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

    @cached_property
    def cards(self) -> list[tuple[int, list[tuple[Column, Cell]], Sequence[str]]]:
        """Return the rows of the page as `lines`, each with the beginnings of its texts."""
        excerpts = self.table.excerpts([pk for pk, _cells in self.lines]) if self.table.excerpts else {}
        return [(pk, cells, excerpts.get(pk, ())) for pk, cells in self.lines]

    @property
    def leads_on(self) -> str:
        """Return what an address of a row adds, so that its page leads on to the next row of this view."""
        has_order = self.is_filtered or self.order
        return urlencode({"table": self.address_query}) if has_order and self.table.has_ways else ""

    @property
    def is_first_page(self) -> bool:
        return not self.query.get("after")

    @cached_property
    def address_query(self) -> str:
        """Return what names this view in an address, without the page."""
        return self._query_with(self.order)

    def _query_with(self, order: str) -> str:
        pairs: list[tuple[str, str]] = [(shown.name, shown.value) for shown in self.fields if shown.value]
        if self.text:
            pairs.append(("text", self.text))
        pairs += to_pairs(self.conditions)
        if order:
            pairs.append(("order", order))
        if self.is_in_cards:
            pairs.append(("layout", CARDS))
        if getattr(self.query, "getlist", None) and self.query.get("columns"):
            pairs += [("columns", column.name) for column in self.columns]
        return urlencode(pairs)

    @property
    def filters_in_use(self) -> int:
        """Return how many filters and conditions narrow the rows, the search text left out."""
        return sum(bool(shown.value) for shown in self.fields) + sum(map(len, self.conditions))

    @property
    def is_filtered(self) -> bool:
        """Return True where a filter or a search text narrows the rows."""
        return bool(self.text or self.conditions) or any(shown.value for shown in self.fields)

    def neighbours(self, key: int) -> tuple[int | None, int | None]:
        """Return the keys of the rows before and after one, in the order of the view."""
        order = {"": "oldest", "oldest": ""}.get(self.order)
        if order is None:
            order = self.order.removeprefix("-") if self.descends else f"-{self.order}"
        backwards = View(self.table, self.project, QueryDict(self._query_with(order)))
        return tuple(  # type: ignore[return-value]
            next(iter(view._keys_of(view.matching, 1, after=key)), None) for view in (backwards, self)
        )

    @property
    def description(self) -> str:
        """Return filters, search text and conditions in words; empty where nothing narrows the rows."""
        labels = {column.name: str(column.label) for column in self.all_columns}
        parts = [f"{shown.label}: {dict(shown.choices)[shown.value]}" for shown in self.fields if shown.value]
        if self.text:
            parts.append(f"“{self.text}”")
        alternatives = [
            ", ".join(
                " ".join(
                    (labels.get(each.column, each.column), _relation_label(each.relation), each.value)
                ).strip()
                for each in conditions
            )
            for conditions in self.conditions
        ]
        if alternatives:
            parts.append(" {} ".format(_("or")).join(alternatives))
        return Truncator(", ".join(parts)).chars(_DESCRIPTION_LENGTH)

    @property
    def members(self) -> Sequence[Choice]:
        """Return the members to whom rows can be assigned; none where the table has no such filter."""
        return next((shown.choices for shown in self.fields if shown.name == "assigned"), ())

    @property
    def next_query(self) -> str:
        """Return the query of the next page; empty on the last."""
        rows, more = self._page
        if not more:
            return ""
        return "&".join(part for part in (self.address_query, f"after={rows[-1].pk}") if part)


_DESCRIPTION_LENGTH = 120


def _relation_label(relation: str) -> str:
    return str(Relation(relation).label) if relation in Relation.values else relation


def _is_metadata(name: str) -> bool:
    return name.startswith((PREFIX, OF_RESPONSES))


# Filters of the tables of a project's data: the values to choose from, and the rows that a value leaves.

_SMALL_ROUND = 50_000
"""Comparisons of a round of which all annotations are read for a page."""


def rounds(project: Project) -> Sequence[Choice]:
    """Return the rounds from the first with comparisons to the last."""
    # The ends are read from an index; listing all that occur reads every comparison.
    ends = Comparison.objects.filter(project=project).aggregate(
        first=Min("round_number"), last=Max("round_number")
    )
    if ends["first"] is None:
        return []
    numbers = range(ends["last"], ends["first"] - 1, -1)
    return [(str(number), _("Round %(number)s") % {"number": number}) for number in numbers]


def _splits(_project: Project) -> Sequence[Choice]:
    return list(Split.choices)


def _tags(project: Project) -> Sequence[Choice]:
    return [(tag, tag) for tag in tags_of(project)]


def tags_of(project: Project) -> list[str]:
    """Return the tags of the project's prompts in order; of a large project those of a while ago."""
    return cached(lambda: _tags_in_use(project), "tags of prompts", project.pk)


def _tags_in_use(project: Project) -> list[str]:
    tagged = Prompt.objects.filter(project=project).exclude(tags=[]).order_by()
    return sorted({str(tag) for tags in tagged.values_list("tags", flat=True).distinct() for tag in tags})


def annotators(project: Project) -> Sequence[Choice]:
    """Return the members of the project."""
    people = User.objects.filter(memberships__project=project).order_by("username").distinct()
    return [(str(person.pk), person.username) for person in people]


def sources(project: Project) -> Sequence[Choice]:
    """Return the models and sets that the project has responses of."""
    written = Completion.objects.filter(prompt__project=project).values("source")
    return [(str(source.pk), source.name) for source in CompletionSource.objects.filter(pk__in=written)]


def categories(project: Project) -> Sequence[Choice]:
    """Return the span categories."""
    return [(str(category.pk), category.label) for category in project.categories.all()]


def states(_project: Project) -> Sequence[Choice]:
    """Return the states of a comparison."""
    return [
        ("open", _("open")),
        ("annotated", _("annotated")),
        ("quarantined", _("quarantined")),
        ("flagged", _("flagged")),
    ]


def agreements(_project: Project) -> Sequence[Choice]:
    """Return the bounds of agreement."""
    return [("50", _("below 50 %")), ("75", _("below 75 %")), ("100", _("below 100 %"))]


def agree_less(rows: QuerySet[Any], _project: Project, value: str) -> QuerySet[Any]:
    """Keep comparisons whose annotators agree less than the bound."""
    return rows.filter(agreement__lt=int(value) / 100)


def in_state(rows: QuerySet[Any], _project: Project, value: str) -> QuerySet[Any]:
    """Keep comparisons in a state."""
    if value == "open":
        return rows.filter(open_slots__gt=0)
    if value == "quarantined":
        return rows.filter(withholding__state=WithholdingState.PENDING)
    if value == "flagged":
        return rows.filter(Exists(Assignment.objects.filter(comparison=OuterRef("pk"), flags__isnull=False)))
    current = Judgment.objects.current().filter(comparison=OuterRef("pk"))
    return rows.filter(Exists(current), open_slots=0)


def lookup(path: str) -> Callable[[QuerySet[Any], Project, str], QuerySet[Any]]:
    """Return a filter that compares a field."""

    def apply(rows: QuerySet[Any], _project: Project, value: str) -> QuerySet[Any]:
        return rows.filter(**{path: value})

    return apply


def annotated_by(rows: QuerySet[Any], _project: Project, value: str) -> QuerySet[Any]:
    """Keep comparisons that somebody annotated."""
    current = Judgment.objects.current().filter(comparison=OuterRef("pk"), annotator_id=int(value))
    return rows.filter(Exists(current))


def reserved_for(rows: QuerySet[Any], _project: Project, value: str) -> QuerySet[Any]:
    """Keep comparisons that are reserved for somebody."""
    return rows.filter(Exists(reservations().filter(user=int(value))))


def with_response_of(rows: QuerySet[Any], _project: Project, value: str) -> QuerySet[Any]:
    """Keep comparisons with a response of a model."""
    return rows.filter(
        Exists(Candidate.objects.filter(comparison=OuterRef("pk"), completion__source_id=int(value)))
    )


def tools(project: Project) -> Sequence[Choice]:
    """Return the tools that agents called; of a large project those of a while ago."""
    return [(tool, tool) for tool in cached(lambda: _tools_in_use(project), "tools of traces", project.pk)]


def _tools_in_use(project: Project) -> list[str]:
    called = TraceStep.objects.filter(completion__prompt__project=project).exclude(tool="")
    return list(called.order_by("tool").values_list("tool", flat=True).distinct())


def calling(rows: QuerySet[Any], _project: Project, value: str) -> QuerySet[Any]:
    """Keep comparisons with a trace in which a tool was called."""
    called = TraceStep.objects.filter(tool=value, completion__candidacies__comparison=OuterRef("pk"))
    return rows.filter(Exists(called))


def kinds(_project: Project) -> Sequence[Choice]:
    """Return what annotations are for; other pages count one or several of these."""
    return [
        ("work", _("work of people")),
        ("bulk", _("work of people, given in bulk")),
        ("measuring", _("gold items, qualification and retests")),
        ("ai", _("AI annotators")),
        ("arena", _("votes in arenas")),
        ("unblinded", _("unblinded votes")),
    ]


def of_kind(rows: QuerySet[Any], _project: Project, value: str) -> QuerySet[Any]:
    """Return the annotations of a kind; each has one, and those given in bulk are work, too."""
    work = Q(comparison__purpose=Purpose.WORK, assignment__retest_of__isnull=True)
    arena, machine = Q(comparison__purpose=Purpose.ARENA), Q(annotator__is_machine=True)
    conditions = {
        "work": work & ~machine & Q(blind=True),
        "bulk": work & ~machine & Q(in_bulk=True),
        "measuring": ~work & ~arena & ~machine,
        "ai": machine & ~arena,
        "arena": arena,
        "unblinded": work & ~machine & Q(blind=False),
    }
    return rows.filter(conditions[value])


def with_category(rows: QuerySet[Any], _project: Project, value: str) -> QuerySet[Any]:
    """Keep annotations with a span of a category."""
    return rows.filter(Exists(SpanFlag.objects.filter(judgment=OuterRef("pk"), category_id=value)))


def answers(project: Project) -> Sequence[Choice]:
    """Return the choices and points of the additional questions, and for each question its lack."""
    return [
        choice
        for question in configuration_of(project).questions
        for choice in (
            *(
                (f"{question.key}={each.key}", f"{question.text}: {each.label or each.key}")
                for each in question.choices
            ),
            (f"{question.key}=", _("%(question)s: no answer") % {"question": question.text}),
        )
    ]


def with_answer(rows: QuerySet[Any], _project: Project, value: str) -> QuerySet[Any]:
    """Keep annotations that give an answer, alone or among several, or that give none."""
    key, _equals, chosen = value.partition("=")
    given = QuestionAnswer.objects.filter(judgment=OuterRef("pk"), version__question__key=key)
    if not chosen:
        return rows.filter(~Exists(given))
    # As text, since SQLite does not look into lists; a point of a scale stands there as a number.
    written = given.annotate(written=Cast("value", TextField()))
    return rows.filter(
        Exists(
            written.filter(Q(written=chosen) | Q(written__contains=json.dumps(chosen, ensure_ascii=False)))
        )
    )


def _tagged(path: str) -> Callable[[QuerySet[Any], Project, str], QuerySet[Any]]:
    def apply(rows: QuerySet[Any], project: Project, value: str) -> QuerySet[Any]:
        tagged = Prompt.objects.filter(project=project)
        if not connection.features.supports_json_field_contains:
            named = tagged.exclude(tags=[]).values_list("pk", "tags")
            return rows.filter(**{f"{path}__in": [pk for pk, tags in named if value in tags]})
        few = few_of(tagged.filter(tags__contains=[value]))
        if few is None:
            field = "tags" if path == "pk" else f"{path}__tags"
            return rows.filter(**{f"{field}__contains": [value]})
        return rows.filter(**{f"{path}__in": few})

    return apply


def round_filter(path: str) -> Filter:
    """Return the filter by round, whose number stands in `path`."""
    return Filter(
        name="round",
        label=gettext_lazy("Round"),
        choices=rounds,
        apply=lookup(path),
        collects=_is_small_round if "__" in path else never,
    )


def _is_small_round(project: Project, value: str) -> bool:
    comparisons = Comparison.objects.filter(project=project, round_number=value).order_by()
    return comparisons[: _SMALL_ROUND + 1].count() <= _SMALL_ROUND


def split_filter(path: str) -> Filter:
    return Filter(name="split", label=gettext_lazy("Split"), choices=_splits, apply=lookup(path))


def tag_filter(path: str) -> Filter:
    """Return the filter by tag of the prompt in `path`."""
    return Filter(
        name="tag", label=gettext_lazy("Tag"), choices=_tags, apply=_tagged(path), collects=_is_rare_tag
    )


def _is_rare_tag(_project: Project, value: str) -> bool:
    has_index = connection.features.supports_json_field_contains
    return has_index and not is_common(Prompt.objects.filter(tags__contains=[value]))
