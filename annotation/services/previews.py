"""An uploaded file before it is brought in: its first rows as they are, and as they are read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from annotation.formats.columns import renamed
from annotation.models import FileImport
from annotation.services.file_imports import sample_of
from annotation.services.uploads import BUSY, path_of

SHOWN_ROWS = 5
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """The beginning of a file, by its mapping."""

    columns: list[str]
    """What the file has, by its own names."""
    rows: list[Mapping[str, Any]]
    """The first rows, their columns by the names of the format."""

    @property
    def names(self) -> list[str]:
        """The columns of the rows."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    @property
    def shortened(self) -> list[list[str]]:
        """The rows as cells in the order of `names`, each cut off where it is long."""
        return [[str(row.get(name, ""))[:_SHOWN_CHARACTERS] for name in self.names] for row in self.rows]


def preview_of(record: FileImport) -> Preview | None:
    """The beginning of an uploaded file; None where it is gone, or on its way in.

    Refuses one that cannot be read, saying where.
    """
    if not record.stored_as or record.state in BUSY or not path_of(record).is_file():
        return None
    rows = sample_of(path_of(record), name=record.name, unpack=False, rows=SHOWN_ROWS)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return Preview(columns=columns, rows=[renamed(row, record.mapping) for row in rows])
