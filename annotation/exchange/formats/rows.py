"""The rows of a file, one after another, in constant memory: JSON Lines, JSON, CSV, Parquet, Arrow, a folder.

What sort of file it is, its beginning says, never a content type and only for text its name. pyarrow is
loaded for Parquet and Arrow alone.
"""

import codecs
import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import closing
from datetime import date, datetime, timedelta
from datetime import time as clock_time
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import IO, Any

from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.exchange.formats.fields import (
    DECODER,
    LENIENT_DECODER,
    FieldError,
    excerpt,
    refuse_undecodable,
    refuse_unstorable,
)
from annotation.exchange.formats.items import Row

# Data sets of the Hugging Face hub: their data files, fetched into huggingface-hub's own cache.

_ID = re.compile(r"(?:hf://)?(?:datasets/)?([\w.-]+/[\w.-]+)")
_FILE_ENDINGS = (".json", ".jsonl", ".csv", ".tsv", ".gz", ".parquet", ".arrow", ".feather", ".txt")
_DATA = ["*.parquet", "*.jsonl", "*.jsonl.gz", "*.json", "*.csv"]


def hub_id(name: str) -> str | None:
    """The id of a data set, of `owner/name` or `hf://datasets/owner/name`; None of anything else."""
    if name.lower().endswith(_FILE_ENDINGS) and not name.startswith("hf://"):
        # A path with a typing error is no reason to ask the hub.
        return None
    match = _ID.fullmatch(name)
    return match.group(1) if match else None


def fetch(name: str, *, revision: str | None = None) -> Path:
    """The folder with the data files of a data set; Parquet alone where there is Parquet.

    No code of the data set is run, and no script fetched. Refuses what is not there, what is private, and a
    machine without a network, each in a sentence.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        files = HfApi().list_repo_files(name, repo_type="dataset", revision=revision)
        patterns = _DATA[:1] if any(file.endswith(".parquet") for file in files) else _DATA
        return Path(
            snapshot_download(
                name, repo_type="dataset", revision=revision, allow_patterns=patterns, max_workers=2
            )
        )
    except RepositoryNotFoundError:
        raise Refusal(
            "unknown_dataset",
            _(
                "The hub has no data set %(name)r that this machine may read. Check the name; "
                "for a private one set HF_TOKEN."
            ),
            field="file",
            name=name,
        ) from None
    except Exception as error:  # The library's own, its HTTP client's, the disk's: they change with versions.
        raise Refusal(
            "dataset_not_fetched",
            _(
                "The data set %(name)r cannot be fetched (%(error)s). Where there is no network, "
                "fetch it elsewhere with `hf download --repo-type dataset %(name)s` and import "
                "the folder."
            ),
            field="file",
            name=name,
            error=type(error).__name__,
        ) from None


# Bounds on files that look small: bombs are refused before they fill memory or disk.
#
# Compressed text and tables of real judgments grow some twenty times when they are unpacked; deflate can
# make a thousand of one, the dictionaries of Parquet any number.

FREE_BYTES = 256 * 1024**2
"""So much any file may hold, however small it is."""
MOST_TIMES = 100
"""Beyond that, so many times its own size."""
MOST_FILES = 10_000
"""Data files in a folder."""
MOST_COLUMNS = 2_000


class Expanding:
    """Counts what comes out of a file, and refuses once it is more than such a file can honestly hold."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._most = max(FREE_BYTES, MOST_TIMES * path.stat().st_size)
        self._so_far = 0

    def add(self, count: int) -> None:
        """So many bytes more came out. Raises `Refusal`."""
        self._so_far += count
        if self._so_far > self._most:
            raise Refusal(
                "unpacks_too_large",
                _(
                    "%(name)s unpacks to more than %(most)s MB, far more than judgments of its "
                    "size do. If it holds some all the same, unpack it first."
                ),
                field="file",
                name=self._name,
                most=self._most // 1024**2,
            )


class Counted(io.RawIOBase):
    """A stream that is read through a bound."""

    def __init__(self, stream: gzip.GzipFile, bound: Expanding) -> None:
        self._stream = stream
        self._bound = bound

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        """As far as the stream is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go elsewhere in it."""
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        """Return the position."""
        return self._stream.tell()

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        """Read on. Raises `Refusal`."""
        data = self._stream.read(len(buffer))
        self._bound.add(len(data))
        buffer[: len(data)] = data
        return len(data)


def data_files(folder: Path) -> list[Path]:
    """The regular files of a data set's folder, in the order of their names.

    Refuses more than `MOST_FILES`, and a link that leads out of the folder: whoever made the folder would
    choose what is read here. Links into the hub's cache around it are how that cache is made.
    """
    root = _cache_around(folder) or folder
    root, files = root.resolve(), []
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        if not path.resolve().is_relative_to(root):
            raise Refusal(
                "link_leads_outside",
                _(
                    "%(path)s is a link that leads out of %(folder)s: put the file itself there, "
                    "or take it away."
                ),
                field="file",
                path=path,
                folder=folder,
            )
        files.append(path)
        if len(files) > MOST_FILES:
            raise Refusal(
                "too_many_files",
                _("%(folder)s holds more than %(most)s files. Name one of them."),
                field="file",
                folder=folder,
                most=MOST_FILES,
            )
    return files


def _cache_around(folder: Path) -> Path | None:
    """The folder of a data set in the hub's cache, of whose revisions this one is."""
    is_revision = folder.parent.name == "snapshots" and (folder.parent.parent / "blobs").is_dir()
    return folder.parent.parent if is_revision else None


# Files that are no text in UTF-8: refused by their first bytes, in words that name what they are.

LOOKED_AT = 8192
"""Bytes from the beginning of a file that tell text from everything else."""
_KINDS = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"GIF8", "GIF"),
    (b"RIFF", "RIFF"),
    (b"%PDF-", "PDF"),
    (b"SQLite format 3\x00", "SQLite"),
    (b"\xd0\xcf\x11\xe0", "Excel/Word"),
    (b"\x7fELF", "ELF"),
    (b"\x89HDF", "HDF5"),
)
_ARCHIVES = (b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf", b"\x28\xb5\x2f\xfd", b"Rar!")
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


def refuse_binary(beginning: bytes) -> None:
    """Refuse (`Refusal`) a file whose first `LOOKED_AT` bytes are no text.

    Text in another encoding of one byte, such as Latin-1, passes: its rows are refused one by one, each with
    the byte that is not UTF-8.
    """
    if beginning.startswith(_UTF_16) or _is_half_nul(beginning):
        raise Refusal(
            "file_not_utf8", _("The file is in UTF-16, not in UTF-8. Save it in UTF-8."), field="file"
        )
    if beginning.startswith(_ARCHIVES) and not _is_utf_8(beginning):
        raise Refusal(
            "file_is_archive", _("The file is an archive. Unpack it, and take one file of it."), field="file"
        )
    for magic, kind in _KINDS:
        if beginning.startswith(magic) and (_CONTROL.search(beginning) or not _is_utf_8(beginning)):
            raise Refusal(
                "file_is_binary",
                _(
                    "The file is binary (%(kind)s), not text with rows. "
                    "Upload JSON Lines, JSON or CSV in UTF-8."
                ),
                field="file",
                kind=kind,
            )
    if _CONTROL.search(beginning) and not _is_utf_8(beginning):
        raise Refusal(
            "file_is_binary",
            _("The file is binary, not text with rows. Upload JSON Lines, JSON or CSV in UTF-8."),
            field="file",
        )


def _is_half_nul(beginning: bytes) -> bool:
    """Return True where every second byte is NUL: Latin script in UTF-16 without its mark."""
    even, odd = beginning[::2], beginning[1::2]
    return len(odd) >= 4 and any(
        half.count(0) > 0.9 * len(half) and other.count(0) < 0.1 * len(half)
        for half, other in ((even, odd), (odd, even))
    )


def _is_utf_8(beginning: bytes) -> bool:
    try:
        # A character may be cut in two by the end of what is looked at.
        codecs.getincrementaldecoder("utf-8")().decode(beginning, final=len(beginning) < LOOKED_AT)
    except UnicodeDecodeError:
        return False
    return True


NumberedRow = tuple[int, Row | FieldError]
"""The number of a row, from 1, and the row, or why it is none."""

LONGEST_ROW = 32 * 1024**2
"""Characters of one row; a longer one is a file of another sort."""
_CHUNK = 256 * 1024
_ROWS_AT_ONCE = 500
_ROWS_OF_A_TABLE = 128
"""Of Parquet: a row of a few bytes there may be one of megabytes here."""
_DATA_KINDS = ("parquet", "arrow", "jsonl", "jsonl.gz", "json", "csv", "tsv")
_NO_DATA = ("dataset_info.json", "dataset_dict.json", "dataset_infos.json", "state.json", "export.json")


def read_rows(path: Path, *, unpack: bool = True, split: str = "") -> Iterator[NumberedRow]:
    """All rows of a file, or of the data files of a folder in the order of their names.

    unpack: whether what is compressed is read: gzip, Parquet, Arrow. Of what people upload nothing is: a
    small file may hold more than fits anywhere. split: of a folder, only the files whose
    path names it. Refuses (`Refusal`) what cannot be read at all; a single bad row comes as its error.
    """
    number = 0
    for file in _files(path, split):
        for _number, row in _rows_of(file, unpack):
            number += 1
            yield number, row


def _files(path: Path, split: str) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = [
        file
        for file in data_files(path)
        if file.name not in _NO_DATA
        and not any(part.startswith((".", "cache-")) for part in file.relative_to(path).parts)
        and (not split or split in "/".join(file.relative_to(path).parts))
    ]
    for kind in _DATA_KINDS:
        if chosen := [file for file in files if file.name.endswith(f".{kind}")]:
            return chosen
    kinds = ", ".join(_DATA_KINDS)
    if split:
        message = _("%(path)s holds no data file of the split %(split)r (%(kinds)s). Name a file in it.")
        raise Refusal("no_data_file", message, path=path, split=split, kinds=kinds)
    raise Refusal(
        "no_data_file",
        _("%(path)s holds no data file (%(kinds)s). Name a file in it."),
        path=path,
        kinds=kinds,
    )


def _rows_of(path: Path, unpack: bool) -> Iterator[NumberedRow]:
    with path.open("rb") as stream:
        beginning = stream.read(LOOKED_AT)
    is_gzip = beginning[:2] == b"\x1f\x8b"
    is_file, is_stream = beginning[:6] == b"ARROW1", beginning[:4] == b"\xff\xff\xff\xff"
    if (is_gzip or is_file or is_stream or beginning[:4] == b"PAR1") and not unpack:
        raise Refusal(
            "file_is_compressed",
            _("The file is compressed. Unpack it first, or import it with manage.py import_judgments."),
            field="file",
        )
    if is_gzip:
        yield from _unpacked(path)
    elif beginning[:4] == b"PAR1":
        yield from _parquet(path)
    elif is_file or is_stream:
        yield from _arrow(path, is_stream=is_stream)
    elif beginning[:4] == b"PK\x03\x04":
        raise Refusal(
            "file_is_archive", _("The file is an archive. Unpack it, and take one file of it."), field="file"
        )
    else:
        refuse_binary(beginning)
        # Only "\n" ends a line: a lone "\r" may stand inside a JSON text's line.
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="\n") as text:
            yield from _text_rows(text, path.name)


def _unpacked(path: Path) -> Iterator[NumberedRow]:
    try:
        with gzip.open(path, "rb") as unpacked:
            refuse_binary(unpacked.read(LOOKED_AT))
            unpacked.seek(0)
            counted = io.BufferedReader(Counted(unpacked, Expanding(path)), _CHUNK)
            lines = io.TextIOWrapper(counted, encoding="utf-8-sig", errors="surrogateescape", newline="\n")
            yield from _text_rows(lines, path.name.removesuffix(".gz"))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise Refusal(
            "file_not_unpacked",
            _("The file cannot be unpacked (%(error)s). Compress it again with gzip."),
            field="file",
            error=error,
        ) from None


def _text_rows(stream: IO[str], name: str) -> Iterator[NumberedRow]:
    if name.lower().endswith((".csv", ".tsv")):
        return _csv(stream)
    beginning = stream.read(_CHUNK)
    stream.seek(0)
    first = beginning.lstrip()[:1]
    if first == "[":
        return _json(stream)
    if _BEGINS_ONE_OBJECT.match(beginning):
        return _opened(_one_object(stream))
    if first == "{" or name.lower().endswith((".jsonl", ".ndjson", ".json")):
        return _opened(_json_lines(stream))
    return _csv(stream)


_BEGINS_ONE_OBJECT = re.compile(r"\s*\{\s*\n|\s*\{[^\n]*[\[{,]\s*\n")
"""A line that ends within an object: the file is one object on many lines, as of promptfoo."""


def _one_object(stream: IO[str]) -> Iterator[NumberedRow]:
    document = stream.read(LONGEST_ROW)
    if stream.read(1):
        raise Refusal(
            "object_too_large",
            _("The file is one object of more than 32 MB. Write a list of objects."),
            field="file",
        )
    yield 1, _object(document)


def _json_lines(stream: IO[str]) -> Iterator[NumberedRow]:
    for number, line in enumerate(iter(lambda: stream.readline(LONGEST_ROW), ""), start=1):
        if line.strip():
            yield number, _object(line.rstrip("\r\n"))


_AROUND_ROWS = frozenset(
    {
        *("columns", "index", "index_names", "column_names", "schema"),
        *("features", "num_rows_total", "num_rows_per_page", "partial"),
        *("meta", "metadata", "info", "version", "object", "total", "count"),
        *("page", "next", "previous", "has_more", "first_id", "last_id"),
    }
)
"""Names beside the rows in a file that is one object, as of pandas, the hub and APIs: no row is in them."""


def _opened(rows: Iterator[NumberedRow]) -> Iterator[NumberedRow]:
    """The rows; those of a table that the file's only object holds."""
    first = next(rows, None)
    if first is None:
        return
    second = next(rows, None)
    inside = _rows_within(first[1]) if second is None and isinstance(first[1], dict) else None
    if inside is not None:
        yield from enumerate(map(_as_row, inside), start=1)
        return
    yield first
    if second is not None:
        yield second
        yield from rows


def _rows_within(document: Row) -> list[Any] | None:
    """The rows of a table in one object; None where it is a row itself.

    As pandas writes them: `{column: {number: value}}` (its default), `columns` and `data` (split), `schema`
    and `data` (table). As servers answer: a list under `data` or `rows`, its pages and counts beside it.
    """
    values = list(document.values())
    if len(values) > 1 and all(
        isinstance(value, dict) and value.keys() == values[0].keys() for value in values
    ):
        numbers = list(values[0])
        if numbers and numbers == [str(number) for number in range(len(numbers))]:
            return [{name: value[number] for name, value in document.items()} for number in numbers]
    for name in ("data", "rows"):
        listed = document.get(name)
        if not isinstance(listed, list) or not listed or not document.keys() <= {name, *_AROUND_ROWS}:
            continue
        columns = document.get("columns")
        if isinstance(columns, list) and all(
            isinstance(row, list) and len(row) == len(columns) for row in listed
        ):
            return [dict(zip(map(str, columns), row, strict=True)) for row in listed]
        if all(isinstance(row, dict) for row in listed):
            # The server of the Hugging Face hub numbers each row.
            return [
                row["row"] if isinstance(row.get("row"), dict) and "row_idx" in row else row for row in listed
            ]
    return None


def _object(line: str) -> Row | FieldError:
    try:
        refuse_undecodable(line)
        value = DECODER.decode(line)
    except json.JSONDecodeError as error:
        return FieldError(
            "not_json",
            _("The row is not JSON at column %(column)s (%(error)s). Write one object on one line."),
            column=error.colno,
            error=error.msg,
        )
    except (RecursionError, ValueError) as error:
        return _refused(error)
    return _as_row(value)


def _refused(error: Exception) -> FieldError:
    """The refusal of a row that is JSON, but no JSON that can be taken."""
    if isinstance(error, FieldError):
        return error
    if isinstance(error, RecursionError):
        return FieldError("nested_too_deeply", _("The row is nested too deeply."))
    # Python reads no number of more than 4,300 digits.
    return FieldError(
        "number_too_large", _("The row has a number of thousands of digits. Write it as a text.")
    )


def _as_row(value: Any) -> Row | FieldError:
    if not isinstance(value, dict):
        return FieldError("object_expected", _("An object is expected, not %(value)s."), value=excerpt(value))
    try:
        refuse_unstorable(value)
    except FieldError as error:
        return error
    return value


def _json(stream: IO[str]) -> Iterator[NumberedRow]:
    """The objects of one long list, each as soon as it is whole."""
    waiting, number, size = stream.read(_CHUNK).lstrip().removeprefix("["), 0, _CHUNK
    while True:
        waiting = waiting.lstrip(" \t\r\n,")
        if waiting.startswith("]"):
            return
        try:
            row, end = _first(waiting)
        except (json.JSONDecodeError, RecursionError) as error:
            more = stream.read(size)
            # Twice as much each time: one long row is not read over and over.
            size *= 2
            if not more or len(waiting) > LONGEST_ROW:
                why = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
                raise Refusal(
                    "file_not_json",
                    _("The file is not JSON after row %(number)s (%(why)s). Write a list of objects."),
                    field="file",
                    number=number,
                    why=why,
                ) from None
            waiting += more
            continue
        number, size, waiting = number + 1, _CHUNK, waiting[end:]
        yield number, row


def _first(waiting: str) -> tuple[Row | FieldError, int]:
    """The first value, or why it is no row, and where it ends. Raises where it does not end here."""
    try:
        value, end = DECODER.raw_decode(waiting)
        refuse_undecodable(waiting[:end])
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        _value, end = LENIENT_DECODER.raw_decode(waiting)
        return _refused(error), end
    return _as_row(value), end


def _csv(stream: IO[str]) -> Iterator[NumberedRow]:
    csv.field_size_limit(LONGEST_ROW)
    lines, skipped = _lines(stream), 0
    header = next(lines, "")
    delimiter = max(",;\t|", key=header.count)
    if stated := _SEPARATOR.fullmatch(header):
        # Excel's own first line.
        delimiter, skipped, header = stated.group(1), 1, next(lines, "")
    if header.count(delimiter) >= MOST_COLUMNS:
        raise Refusal(
            "too_many_columns",
            _("The file has more than %(most)s columns. Take those that matter."),
            field="file",
            most=MOST_COLUMNS,
        )
    reader = csv.DictReader(chain([header], lines), delimiter=delimiter, strict=True)
    try:
        names = [name for name in reader.fieldnames or () if name.strip()]
    except csv.Error as error:
        yield 1, _no_csv(error, reader.reader.line_num + skipped)
        return
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise Refusal(
            "column_named_twice",
            _("Two columns are called %(name)r. Give each its own name."),
            field="file",
            name=doubled[:60],
        )
    number = 0
    while True:
        number += 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, _no_csv(error, reader.reader.line_num + skipped)
            return
        # Spreadsheets save rows of which every cell is empty.
        if any(row.values()):
            yield number, _cells(row)


def _no_csv(error: csv.Error, line: int) -> FieldError:
    if "new-line character" in str(error):
        return FieldError(
            "not_csv",
            _("Line %(line)s has a carriage return outside of quotes. End lines with a line feed."),
            line=line,
        )
    return FieldError(
        "not_csv",
        _("Line %(line)s is no CSV (%(error)s). Close every quote that is opened."),
        line=line,
        error=error,
    )


_SEPARATOR = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)


def _lines(stream: IO[str]) -> Iterator[str]:
    """The lines of a table. Where no line feed ends one, a carriage return does, as on old Macs."""
    beginning = stream.read(_CHUNK)
    stream.seek(0)
    if "\n" in beginning or "\r" not in beginning:
        yield from iter(lambda: stream.readline(LONGEST_ROW), "")
        return
    waiting = ""
    while part := stream.read(_CHUNK):
        *whole, waiting = f"{waiting}{part}".split("\r")
        yield from (f"{line}\r" for line in whole)
    if waiting:
        yield waiting


def _cells(row: dict[Any, Any]) -> Row | FieldError:
    # Cells beyond those of the header stand under None. A column without a name is none of them.
    if row.pop(None, None):
        return FieldError(
            "too_many_cells", _("The row has more cells than the header names. Quote what holds a comma.")
        )
    cells = {name: value for name, value in row.items() if value is not None}
    try:
        for value in (*cells, *cells.values()):
            if not value.isascii():
                refuse_undecodable(value)
        refuse_unstorable(cells)
    except FieldError as error:
        return error
    return cells


def _parquet(path: Path) -> Iterator[NumberedRow]:
    import pyarrow
    import pyarrow.parquet

    bound = Expanding(path)
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            _refuse_many_columns(len(file.schema_arrow.names), path)
            for batch in file.iter_batches(batch_size=_ROWS_OF_A_TABLE, use_threads=False):
                # Before it becomes Python objects: what a dictionary repeats is there once, and then often.
                bound.add(batch.nbytes)
                yield from enumerate(map(_plain_row, batch.to_pylist()), start=1)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise Refusal(
            "parquet_not_readable",
            _("%(name)s cannot be read as Parquet: %(error)s"),
            name=path.name,
            error=error,
        ) from None


def _arrow(path: Path, *, is_stream: bool) -> Iterator[NumberedRow]:
    import pyarrow

    bound = Expanding(path)
    try:
        with pyarrow.memory_map(str(path)) as source:
            if is_stream:
                with closing(pyarrow.ipc.open_stream(source)) as batches:
                    _refuse_many_columns(len(batches.schema.names), path)
                    for batch in batches:
                        yield from _batch_rows(batch, bound)
                return
            file = pyarrow.ipc.open_file(source)
            _refuse_many_columns(len(file.schema.names), path)
            for place in range(file.num_record_batches):
                yield from _batch_rows(file.get_batch(place), bound)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise Refusal(
            "arrow_not_readable",
            _("%(name)s cannot be read as Arrow: %(error)s"),
            name=path.name,
            error=error,
        ) from None


def _refuse_many_columns(count: int, path: Path) -> None:
    if count > MOST_COLUMNS:
        raise Refusal(
            "too_many_columns",
            _("%(name)s has more than %(most)s columns. Take those that matter."),
            field="file",
            name=path.name,
            most=MOST_COLUMNS,
        )


def _batch_rows(batch: Any, bound: Expanding) -> Iterator[NumberedRow]:
    bound.add(batch.nbytes)
    for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
        yield from enumerate(map(_plain_row, batch.slice(start, _ROWS_AT_ONCE).to_pylist()), start=1)


def _plain_row(row: dict[str, Any]) -> dict[str, Any]:
    """The row in values of JSON, with null for NaN, as which pandas writes a missing number."""
    return {name: value if type(value) in _PLAIN else _plain(value) for name, value in row.items()}


_PLAIN = (str, int, bool, type(None))


def _plain(value: Any) -> Any:
    match value:
        case float():
            return None if value != value else value
        case list():
            return [entry if type(entry) in _PLAIN else _plain(entry) for entry in value]
        case dict():
            return _plain_row(value)
        case tuple():
            return [_plain(entry) for entry in value]
        case datetime() | date() | clock_time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case bytes():
            return value.decode("utf-8", "backslashreplace")
    return value
