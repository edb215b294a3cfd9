"""Folders as ZIP streams: nothing is gathered on disk or in memory first. Knows no database.

No symbolic link is followed, and the secrets of this installation are struck out of every text file.
"""

from __future__ import annotations

import io
import os
import stat
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

_PIECE = 1 << 18
_TEXT = (".txt", ".json", ".jsonl", ".md")
_STRUCK_OUT = b"[struck out]"
_SHORTEST_SECRET = 8
_SECRET_ENDINGS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")


def secrets_in(environment: dict[str, str], *, known_secrets: Sequence[str] = ()) -> list[bytes]:
    """Return values that must leave no machine: of variables named like secrets, and `known_secrets`."""
    values = {value for name, value in environment.items() if name.endswith(_SECRET_ENDINGS)}
    values |= set(known_secrets)
    # The longest first: one may be the beginning of another.
    secrets = sorted((value for value in values if len(value) >= _SHORTEST_SECRET), key=len, reverse=True)
    return [secret.encode() for secret in secrets]


class _Sink(io.RawIOBase):
    """Buffer that `zipfile` writes to, emptied by its reader."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        return len(piece)

    def drain(self) -> bytes:
        content = b"".join(self._pieces)
        self._pieces.clear()
        return content


def zip_of_folder(
    folder: Path, *, name: str, secrets: Sequence[bytes] = (), left_out: Sequence[str] = ()
) -> Iterator[bytes]:
    """Yield the bytes of an archive whose one folder `name` holds the regular files of `folder`.

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
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    continue
                entry = zipfile.ZipInfo(f"{name}/{place}", date_time=time.localtime(status.st_mtime)[:6])
                entry.compress_type = (
                    zipfile.ZIP_STORED if path.suffix == ".safetensors" else zipfile.ZIP_DEFLATED
                )
                with archive.open(
                    entry, "w", force_zip64=status.st_size > zipfile.ZIP64_LIMIT // 2
                ) as target:
                    for piece in _pieces(stream, secrets if path.suffix in _TEXT else ()):
                        target.write(piece)
                        yield sink.drain()
    yield sink.drain()


def _files(folder: Path, left_out: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Regular files with their place below `folder`, in the order of names."""
    for parent, folders, files in os.walk(folder, followlinks=False):
        at = Path(parent)
        skipped = set(left_out) if at == folder else set()
        folders[:] = sorted(
            folder_name
            for folder_name in folders
            if not folder_name.startswith(".") and folder_name not in skipped
        )
        for name in sorted(files):
            path = at / name
            if not name.startswith(".") and name not in skipped and not path.is_symlink():
                yield path, path.relative_to(folder).as_posix()


def _pieces(stream: BinaryIO, secrets: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the file in pieces; with secrets line by line, each removed."""
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
