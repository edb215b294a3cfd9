"""An export as the pieces of one file, and the account of what was left out of it."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from annotation.exchange.export_filters import ExportFilters, require_known
from annotation.exchange.file_exports import Export, dropped_line, write_parquet
from annotation.exchange.formats.registry import WRITERS
from annotation.exchange.formats.writers import Dropped, Record
from annotation.models import Project

TYPES: Mapping[str, tuple[str, str]] = {
    "csv": ("text/csv; charset=utf-8", "csv"),
    "json": ("application/json", "json"),
    "jsonl": ("application/jsonl", "jsonl"),
    "parquet": ("application/vnd.apache.parquet", "parquet"),
}
"""Container → media type, and the ending of a file's name."""

_READ_AT_ONCE = 1 << 16


def file_name(export: Export) -> str:
    """Return the name of the file."""
    return f"{export.project.slug}-{export.writer.name}.{TYPES[export.writer.container][1]}"


def pieces_of(export: Export) -> Iterator[bytes]:
    """The file, piece by piece, in whatever container."""
    if export.writer.container != "parquet":
        for text in export.text_stream():
            yield text.encode()
        return
    # Parquet has its table of contents at the end, so it has to be whole before its first byte goes.
    with tempfile.TemporaryFile() as file:
        write_parquet(export.row_stream(), export.writer.columns, file)
        file.seek(0)
        while piece := file.read(_READ_AT_ONCE):
            yield piece


def manifest_of(export: Export) -> dict[str, Any]:
    """Return contents, filters, and counts of dropped rows by reason: reads the export to its end."""
    for _row in export.row_stream():
        pass
    return export.manifest()


def dropped_lines(
    make: Callable[[Callable[[Record, Dropped], None]], Export],
) -> Iterator[str]:
    """Each thing that an export drops, as a line of JSON. make: the export, given whom to tell of them."""
    lines: list[str] = []
    for _row in make(lambda record, dropped: lines.append(dropped_line(record, dropped))).row_stream():
        yield from lines
        lines.clear()
    yield from lines


def export_of(
    *,
    project: Project,
    format_name: str,
    filters: ExportFilters,
    on_drop: Callable[[Record, Dropped], None] | None = None,
) -> Export:
    """An export in the format of a name of `WRITERS`. Refuses filters that name what is not there."""
    require_known(project=project, filters=filters)
    return Export(project=project, writer=WRITERS[format_name], filters=filters, on_drop=on_drop)
