"""Bounds on files that look small: bombs are refused before they fill memory or disk.

Compressed text and tables of real judgments grow some twenty times when they are unpacked; deflate can make a
thousand of one, the dictionaries of Parquet any number.
"""

import gzip
import io
from pathlib import Path

from django.utils.translation import gettext as _

from annotation.errors import Refusal

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
        """It is."""
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
