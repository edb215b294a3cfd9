"""Contents of a folder: names, sizes and digests of its files, and the pieces that store them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from training.contract import ContractError, canonical_json
from training.store.errors import DamagedError

FORMAT = 1
PIECE_BYTES = 4 * 1024**2
"""A piece is sent and fetched as a whole: small enough to be sent again, large enough for its round trip."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One file."""

    size: int
    """Bytes."""
    sha256: str
    pieces: tuple[str, ...]
    """SHA-256 of every `PIECE_BYTES` of it, the last being what is left."""

    def sizes(self) -> list[int]:
        """Return the size of each piece."""
        whole, rest = divmod(self.size, PIECE_BYTES)
        return [PIECE_BYTES] * whole + ([rest] if rest else [])


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of a folder, by their place in it with `/` between the parts."""

    files: Mapping[str, Entry]

    @property
    def digest(self) -> str:
        """Return the digest that identifies this listing."""
        return hashlib.sha256(self._canonical().encode()).hexdigest()

    @property
    def pieces(self) -> set[str]:
        """Return all pieces that it names."""
        return {piece for entry in self.files.values() for piece in entry.pieces}

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files.values())

    def _canonical(self) -> str:
        return canonical_json(
            {name: [entry.size, entry.sha256, list(entry.pieces)] for name, entry in self.files.items()}
        )

    def to_bytes(self) -> bytes:
        """As it is kept. Its own digest goes with it: one that is torn or changed is refused."""
        plain = {"format": FORMAT, "digest": self.digest, "files": json.loads(self._canonical())}
        return (canonical_json(plain) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> Listing:
        """Parse the output of `to_bytes`. Raises `DamagedError` for anything else and for unsafe names."""
        try:
            plain = json.loads(data)
            if plain["format"] != FORMAT:
                raise DamagedError(f"{where} has format {plain['format']!r}, and this Rondo reads {FORMAT}.")
            listing = cls({name: _entry(values) for name, values in plain["files"].items()})
            if listing.digest != plain["digest"]:
                raise ValueError("its digest is another")
        except (ValueError, KeyError, TypeError, AttributeError, ContractError) as error:
            raise DamagedError(f"{where} is damaged: {error}.") from error
        for name in listing.files:
            require_plain(name, where=where)
        return listing


def _entry(values: list[object]) -> Entry:
    size, sha256, pieces = values
    if not isinstance(size, int) or size < 0 or not isinstance(pieces, list):
        raise ValueError("an entry without size or pieces")
    for digest in (sha256, *pieces):
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise ValueError("an entry with something that is no SHA-256")
    entry = Entry(size, str(sha256), tuple(pieces))
    if len(entry.sizes()) != len(pieces):
        raise ValueError("an entry whose pieces do not make its size")
    return entry


def require_plain(name: str, *, where: str) -> None:
    """Refuse a name that would be written anywhere but below the folder that it is in."""
    path = PurePosixPath(name)
    odd = "\\" in name or "\0" in name or name != path.as_posix()
    if odd or path.is_absolute() or not path.parts or any(part in ("..", ".") for part in path.parts):
        raise DamagedError(f"{where} names {name[:200]!r}, which leads out of the folder that it is in.")


def files_below(folder: Path, *, left_out: Iterable[str] = ()) -> Iterator[tuple[str, Path]]:
    """The regular files of a folder, by name; hidden ones, links, and what is `left_out` at its top are not.

    A path that is itself a file is its only one.
    """
    if folder.is_file() and not folder.is_symlink():
        yield folder.name, folder
        return
    skipped = set(left_out)
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if parts[0] in skipped or any(part.startswith(".") for part in parts):
            continue
        if path.is_file() and not _through_a_link(folder, path):
            yield "/".join(parts), path


def _through_a_link(folder: Path, path: Path) -> bool:
    while path != folder:
        if path.is_symlink():
            return True
        path = path.parent
    return False


def pieces_of(stream: IO[bytes], size: int) -> Iterator[bytes]:
    """The first `size` bytes of a stream in pieces; fewer where it ends before."""
    left = size
    while left > 0 and (piece := stream.read(min(PIECE_BYTES, left))):
        left -= len(piece)
        yield piece
