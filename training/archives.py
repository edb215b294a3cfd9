"""Folders as ZIP streams: nothing is gathered on disk or in memory first. Knows no database.

No symbolic link is followed, and the secrets of this installation are struck out of every text file.
"""

from __future__ import annotations

import os
import stat
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

_PIECE = 1 << 18
_TEXT = (".txt", ".json", ".jsonl", ".md")
_STRUCK_OUT = b"[struck out]"
_SHORTEST_SECRET = 8
_SECRET_ENDINGS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")


def secrets_in(environment: dict[str, str], *, beside: Sequence[str] = ()) -> list[bytes]:
    """What must leave no machine: the values of variables that are named like secrets, and those `beside`."""
    found = {value for name, value in environment.items() if name.endswith(_SECRET_ENDINGS)}
    found |= set(beside)
    # The longest first: one may be the beginning of another.
    kept = sorted((one for one in found if len(one) >= _SHORTEST_SECRET), key=len, reverse=True)
    return [one.encode() for one in kept]


@dataclass(slots=True)
class _Sink:
    """What `zipfile` writes to: keeps what was written until it is taken."""

    pieces: list[bytes] = field(default_factory=list)
    written: int = 0

    def write(self, data: bytes) -> int:
        self.pieces.append(bytes(data))
        self.written += len(data)
        return len(data)

    def tell(self) -> int:
        return self.written

    def flush(self) -> None:
        """There is nothing behind this."""

    def close(self) -> None:
        """Nor is there anything to close."""

    def taken(self) -> bytes:
        whole = b"".join(self.pieces)
        self.pieces.clear()
        return whole


def zip_of_folder(
    folder: Path, *, name: str, secrets: Sequence[bytes] = (), left_out: Sequence[str] = ()
) -> Iterator[bytes]:
    """The bytes of an archive whose one folder `name` holds the regular files of `folder`.

    left_out: names, of files or folders directly in `folder`, that are not taken; hidden ones never are.
    A file that vanishes or grows meanwhile is taken as far as it goes: a run may be under way.
    """
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED, compresslevel=1, allowZip64=True) as archive:
        for path, place in _files(folder, left_out):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:
                continue
            with os.fdopen(descriptor, "rb") as stream:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    continue
                entry = zipfile.ZipInfo(f"{name}/{place}", date_time=time.localtime(found.st_mtime)[:6])
                entry.compress_type = (
                    zipfile.ZIP_STORED if path.suffix == ".safetensors" else zipfile.ZIP_DEFLATED
                )
                with archive.open(entry, "w", force_zip64=found.st_size > zipfile.ZIP64_LIMIT // 2) as target:
                    for piece in _pieces(stream, secrets if path.suffix in _TEXT else ()):
                        target.write(piece)
                        yield sink.taken()
    yield sink.taken()


def _files(folder: Path, left_out: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Regular files with their place below `folder`, in the order of names."""
    for parent, folders, files in os.walk(folder, followlinks=False):
        at = Path(parent)
        skipped = set(left_out) if at == folder else set()
        folders[:] = sorted(one for one in folders if not one.startswith(".") and one not in skipped)
        for one in sorted(files):
            path = at / one
            if not one.startswith(".") and one not in skipped and not path.is_symlink():
                yield path, path.relative_to(folder).as_posix()


def _pieces(stream: BinaryIO, secrets: Sequence[bytes]) -> Iterator[bytes]:
    """The file piece by piece; with secrets line by line, each struck out."""
    if not secrets:
        while piece := stream.read(_PIECE):
            yield piece
        return
    gathered: list[bytes] = []
    size = 0
    for line in stream:
        for secret in secrets:
            if secret in line:
                line = line.replace(secret, _STRUCK_OUT)
        gathered.append(line)
        size += len(line)
        if size >= _PIECE:
            yield b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)
