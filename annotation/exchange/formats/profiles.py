"""The columns of a file, counted over all of its rows: what names and values there are, and in how many rows.

Every name of the file counts, in whatever row it first stands. Memory stays the same however long the file
is: few different values of a column are kept, and only short ones.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from annotation.exchange.formats.items import Row

SAMPLE_ROWS = 20
"""The first rows, by which a format is recognised, besides those that bring a new name."""
MOST_VALUES = 200
"""Different values of one column that are kept; a column with more is one of texts or of ids."""
MOST_VALUES_OF_ALL = 5_000
LONGEST_VALUE = 80
_MOST_SAMPLES = 60
_LONGEST_SAMPLE = 20_000
INNER = ("data", "fields")
"""Columns of nested formats whose own names count as the file's, as `data.question`."""


@dataclass(slots=True)
class Column:
    """One column: its rows that have a value, the kinds of its values, and the values if they are few."""

    name: str
    rows: int = 0
    kinds: set[str] = field(default_factory=set)
    """`text`, `number`, `boolean`, `list` or `object`."""
    values: dict[Any, int] | None = field(default_factory=dict)
    """Value → rows that have it; None where there are too many, or long ones."""
    longest: int = 0
    """Characters of the longest text."""
    example: str = ""

    def add(self, value: Any, room: int) -> int:
        """Count a value; return how many more different values may be kept in all columns."""
        self.rows += 1
        kind = type(value)
        self.kinds.add(_KINDS.get(kind, "object"))
        if self.rows == 1:
            self.example = str(value)[:LONGEST_VALUE]
        if kind is str and len(value) > self.longest:
            self.longest = len(value)
        if self.values is None:
            return room
        if kind in (list, dict) or (kind is str and len(value) > LONGEST_VALUE):
            room += len(self.values)
            self.values = None
            return room
        # 1 and true are one key of a dictionary.
        key = ("true" if value else "false") if kind is bool else value
        if key in self.values:
            self.values[key] += 1
        elif len(self.values) == MOST_VALUES or not room:
            room += len(self.values)
            self.values = None
        else:
            self.values[key] = 1
            room -= 1
        return room

    @property
    def distinct(self) -> list[Any]:
        """The different values, if they are few."""
        return list(self.values or ())


_KINDS = {str: "text", int: "number", float: "number", bool: "boolean", list: "list", dict: "object"}


@dataclass(slots=True)
class Profile:
    """All columns of a file, in the order in which they first appear, and rows that show its shape."""

    rows: int = 0
    columns: dict[str, Column] = field(default_factory=dict)
    sample: list[Row] = field(default_factory=list)
    room: int = MOST_VALUES_OF_ALL

    def add(self, row: Row) -> None:
        """Count a row."""
        self.rows += 1
        new = self._count(row, "")
        for name in INNER:
            inner = row.get(name)
            if isinstance(inner, dict):
                new |= self._count(inner, f"{name}.")
        if len(self.sample) < SAMPLE_ROWS or (new and len(self.sample) < _MOST_SAMPLES):
            self.sample.append(_shape(row))

    def _count(self, values: Mapping[str, Any], prefix: str) -> bool:
        new = False
        for name, value in values.items():
            column = self.columns.get(prefix + name)
            if column is None:
                column = self.columns[prefix + name] = Column(prefix + name)
                new = True
            if value is not None and value != "":
                new |= not column.rows
                self.room = column.add(value, self.room)
        return new

    @property
    def shapes(self) -> Iterator[Row]:
        """Each sampled row with every name of the file: a row may lack what only later rows have."""
        union: dict[str, Any] = {}
        for row in self.sample:
            for name, value in row.items():
                if name not in union or union[name] in (None, ""):
                    union[name] = value
        for row in self.sample:
            yield {**union, **{name: value for name, value in row.items() if value not in (None, "")}}


def _shape(value: Any) -> Any:
    """A row with its long texts cut: a sample may be of rows of megabytes."""
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_SAMPLE else value[:_LONGEST_SAMPLE]
    if isinstance(value, dict):
        return {name: _shape(inner) for name, inner in value.items()}
    return [_shape(inner) for inner in value] if isinstance(value, list) else value


def profile_of(rows: Iterable[Row]) -> Profile:
    """Count the columns of rows."""
    profile = Profile()
    for row in rows:
        profile.add(row)
    return profile
