"""An uploaded file before its import: its first rows as they are, and as they are read."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from annotation.exchange.file_imports import LISTED_ERRORS, items_of, row_error, sample_of
from annotation.exchange.formats.columns import renamed
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.registry import Plan, plan_for
from annotation.exchange.formats.rows import read_rows
from annotation.exchange.uploads import BUSY, path_of
from annotation.models import FileImport

SHOWN_ROWS = 5
CHECKED_ROWS = 500
"""Rows that a preview checks as the import would: a page that opens at once reads no more."""
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """The beginning of a file, by its mapping."""

    columns: list[str]
    """Columns of the file, by its own names."""
    rows: list[Mapping[str, Any]]
    """The first rows, their columns by the names of the format."""
    faults: list[str]
    """Rows among the first `CHECKED_ROWS` that the import would refuse: row, field and remedy of each."""
    checked_rows: int
    """Number of rows checked; the import checks all of them."""

    @property
    def names(self) -> list[str]:
        """The columns of the rows."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    @property
    def shortened(self) -> list[list[str]]:
        """The rows as cells in the order of `names`, each cut off where it is long."""
        return [[str(row.get(name, ""))[:_SHOWN_CHARACTERS] for name in self.names] for row in self.rows]


def preview_of(record: FileImport) -> Preview | None:
    """Return the beginning of an uploaded file; None where it is gone, or being imported.

    Refuses one that cannot be read, saying where.
    """
    if not record.stored_as or record.state in BUSY or not path_of(record).is_file():
        return None
    sample = sample_of(path_of(record), name=record.name, unpack=False)
    rows = sample[:SHOWN_ROWS]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    faults, checked = _faults_in(
        path_of(record), plan_for(sample, name=record.format, mapping=record.mapping)
    )
    return Preview(
        columns=columns,
        rows=[renamed(row, record.mapping) for row in rows],
        faults=faults,
        checked_rows=checked,
    )


def _faults_in(path: Path, plan: Plan) -> tuple[list[str], int]:
    """Return the faults of a file's first rows, by the plan of its import, and the number of rows read."""
    faults: list[str] = []
    rows = list(islice(read_rows(path, unpack=False), CHECKED_ROWS))

    def note(number: int, error: FieldError) -> None:
        if len(faults) < LISTED_ERRORS:
            faults.append(row_error(number, error))

    for _ in items_of(iter(rows), plan, note):
        pass
    return faults, len(rows)
