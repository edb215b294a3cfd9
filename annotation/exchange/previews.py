"""An uploaded file before its import: its first rows, their faults, and the account of its columns."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from annotation.exchange.file_imports import LISTED_ERRORS, items_of
from annotation.exchange.formats.fields import FieldError, row_error
from annotation.exchange.formats.plans import ColumnAccount, Plan
from annotation.exchange.formats.rows import read_rows
from annotation.models import FileImport

SHOWN_ROWS = 5
CHECKED_ROWS = 500
"""Rows that a preview checks as the import would: a page that opens at once reads no more."""
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """The beginning of a file, and the account of all of it."""

    account: tuple[ColumnAccount, ...]
    rows: list[Mapping[str, str]]
    """The first rows, by the file's own names; each value cut off where it is long."""
    faults: list[str]
    """Rows among the first `CHECKED_ROWS` that the import would refuse: row, field and remedy of each."""
    checked_rows: int
    """Number of rows checked; the import checks all of them."""

    @property
    def columns(self) -> list[str]:
        """The columns of the file, by its own names."""
        return [column.name for column in self.account]

    @property
    def rows_by_role(self) -> list[dict[str, str]]:
        """The first rows, by the roles of their columns."""
        roles = {column.name: column.role for column in self.account}
        return [{roles.get(name) or name: value for name, value in row.items()} for row in self.rows]


def preview_values(path: Path, plan: Plan) -> dict[str, Any]:
    """Read the beginning of a file by its plan: what `FileImport.preview` keeps."""
    faults: list[str] = []
    rows = list(islice(read_rows(path, unpack=False), CHECKED_ROWS))

    def note(number: int, error: FieldError) -> None:
        if len(faults) < LISTED_ERRORS:
            faults.append(row_error(number, error))

    for _ in items_of(iter(rows), plan, note):
        pass
    good = [row for _, row in rows if not isinstance(row, FieldError)]
    shown = [
        {name: str(value)[:_SHOWN_CHARACTERS] for name, value in row.items()} for row in good[:SHOWN_ROWS]
    ]
    return {"rows": shown, "faults": faults, "checked_rows": len(rows)}


def preview_of(record: FileImport) -> Preview | None:
    """Return the preview of an uploaded file; None where it is gone, or being imported."""
    if not record.stored_as or record.is_busy or not record.preview:
        return None
    return Preview(account=accounts_of(record.account), **record.preview)


def accounts_of(stored: Iterable[Mapping[str, Any]]) -> tuple[ColumnAccount, ...]:
    """Return the accounts of columns that an import keeps."""
    return tuple(
        ColumnAccount(**{**values, "values": tuple(tuple(value) for value in values["values"])})
        for values in stored
    )
