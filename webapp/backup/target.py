"""Where back-ups lie: their manifests, and the pieces that they have in common."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from training.contract import canonical_json
from training.private_files import make_private_folder
from training.store import PIECE_BYTES, DamagedError, Entry, Listing, NotInStoreError, Objects
from training.store.listings import pieces_of
from webapp.backup.errors import BackupError

FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """One back-up."""

    time: str
    """When the database was copied: ISO 8601 with its zone."""
    commit: str
    """Of the Rondo that made it; empty where that is not known."""
    vendor: str
    """Of the database: sqlite or postgresql."""
    migrations: tuple[str, ...]
    """Those applied, as APP.NAME."""
    rows: Mapping[str, int]
    """Of every table."""
    database: Listing
    """One file."""
    folders: Mapping[str, Listing] = field(default_factory=dict)
    """By their place below RONDO_HOME."""

    @property
    def pieces(self) -> set[str]:
        """All pieces that it needs."""
        return self.database.pieces.union(*(listing.pieces for listing in self.folders.values()))

    @property
    def size(self) -> int:
        """Bytes of everything in it."""
        return self.database.size + sum(listing.size for listing in self.folders.values())

    @property
    def files(self) -> int:
        """How many files it holds, beside the database."""
        return sum(len(listing.files) for listing in self.folders.values())

    def to_bytes(self) -> bytes:
        """As it is kept, with a digest of itself."""
        listed = {key: json.loads(one.to_bytes()) for key, one in self.folders.items()}
        plain = {
            "format": FORMAT,
            "time": self.time,
            "commit": self.commit,
            "vendor": self.vendor,
            "migrations": list(self.migrations),
            "rows": dict(self.rows),
            "database": json.loads(self.database.to_bytes()),
            "folders": listed,
        }
        digest = hashlib.sha256(canonical_json(plain).encode()).hexdigest()
        return (canonical_json({**plain, "digest": digest}) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> Manifest:
        """What `to_bytes` gave. Raises `BackupError` for anything else."""
        try:
            plain = json.loads(data)
            digest = plain.pop("digest")
            if digest != hashlib.sha256(canonical_json(plain).encode()).hexdigest():
                raise ValueError("its digest is another")
            if plain.pop("format") != FORMAT:
                raise ValueError("it has another format than this Rondo reads")
            listings = {key: _listing(one, f"{key} in {where}") for key, one in plain["folders"].items()}
            return cls(
                time=plain["time"],
                commit=plain["commit"],
                vendor=plain["vendor"],
                migrations=tuple(plain["migrations"]),
                rows=plain["rows"],
                database=_listing(plain["database"], where),
                folders=listings,
            )
        except (ValueError, KeyError, TypeError, AttributeError, DamagedError) as error:
            raise BackupError(f"The back-up {where} is damaged: {error}. Take an earlier one.") from error


def _listing(plain: object, where: str) -> Listing:
    return Listing.from_bytes(canonical_json(plain).encode(), where=where)


class Target:
    """A folder or a bucket that back-ups go to. Raises `StoreError` where it does not answer."""

    def __init__(self, address: str) -> None:
        """address: a path, or a URL of fsspec's."""
        self.address = address
        self._folder = None if "://" in address else Path(address).resolve()
        self._objects = Objects(f"file://{self._folder}" if self._folder else address)
        self._there: dict[str, int] | None = None
        self.written = 0
        """Bytes of the pieces that were not there before."""

    def make_private(self) -> None:
        """Keep others on this machine out of the folder, also where it was there before."""
        if self._folder is None:
            return
        try:
            for folder in (self._folder, self._folder / "backups", self._folder / "pieces"):
                make_private_folder(folder)
        except OSError as error:
            raise BackupError(
                f"{self._folder} cannot be written: {error.strerror}. Change its owner, or name another."
            ) from error

    def names(self) -> list[str]:
        """The back-ups, the oldest first."""
        found = self._objects.sizes("backups")
        return sorted(name.removesuffix(".json") for name in found if name.endswith(".json"))

    def manifest(self, name: str = "") -> Manifest:
        """A back-up, the newest unless one is named. Raises `BackupError`."""
        names = self.names()
        if not names or (name and name not in names):
            raise BackupError(f"{self.address} holds no back-up{f' named {name}' if name else ''}.")
        chosen = name or names[-1]
        data = self._objects.read(f"backups/{chosen}.json")
        return Manifest.from_bytes(data, where=f"{chosen} in {self.address}")

    def write_manifest(self, name: str, manifest: Manifest) -> None:
        """From now on the back-up is there."""
        self._objects.write(f"backups/{name}.json", manifest.to_bytes())

    def forget_all_but(self, count: int) -> list[str]:
        """Remove all back-ups but the newest `count`, and the pieces that only they needed; their names."""
        names = self.names()
        gone = names[:-count]
        kept = [self.manifest(name) for name in names[-count:]]
        for name in gone:
            self._objects.remove(f"backups/{name}.json")
        needed = set[str]().union(*(one.pieces for one in kept))
        for place in self._objects.sizes("pieces"):
            if place.rpartition("/")[2] not in needed:
                self._objects.remove(f"pieces/{place}")
        self._there = None
        return gone

    def put(self, stream: IO[bytes], *, size: int | None = None) -> Entry:
        """Keep what a stream gives, to its end or for `size` bytes; pieces that are there are not sent."""
        whole, length, pieces = hashlib.sha256(), 0, []
        parts = iter(lambda: _piece(stream), b"") if size is None else pieces_of(stream, size)
        for data in parts:
            whole.update(data)
            length += len(data)
            pieces.append(self.put_piece(data))
        return Entry(length, whole.hexdigest(), tuple(pieces))

    def put_piece(self, data: bytes) -> str:
        """Keep one piece; its SHA-256."""
        piece = hashlib.sha256(data).hexdigest()
        if not self.has(piece, len(data)):
            self._objects.write(_place(piece), data)
            self.written += len(data)
            self._known()[piece] = len(data)
        return piece

    def has(self, piece: str, size: int) -> bool:
        """Whether a piece is there, as far as names and sizes tell."""
        return self._known().get(piece) == size

    def _known(self) -> dict[str, int]:
        if self._there is None:
            found = self._objects.sizes("pieces")
            self._there = {name.rpartition("/")[2]: size for name, size in found.items()}
        return self._there

    def content(self, name: str, entry: Entry) -> Iterator[bytes]:
        """A file piece by piece, each checked. Raises `BackupError` where it is not what was kept."""
        for piece, size in zip(entry.pieces, entry.sizes(), strict=True):
            try:
                data = self._objects.read(_place(piece))
            except NotInStoreError:
                data = b""
            if len(data) != size or hashlib.sha256(data).hexdigest() != piece:
                raise BackupError(
                    f"The back-up in {self.address} is damaged: a piece of {name} is not what was kept. "
                    "Take an earlier back-up, or another copy of this one."
                )
            yield data

    def damaged(self, manifest: Manifest) -> list[str]:
        """Read everything in a back-up; what is not as it was kept. A piece is read once."""
        wrong = set()
        for piece in sorted(manifest.pieces):
            try:
                data = self._objects.read(_place(piece))
            except NotInStoreError:
                data = b""
            if hashlib.sha256(data).hexdigest() != piece:
                wrong.add(piece)
        found = [("", "database", entry) for entry in manifest.database.files.values()]
        found += [(key, name, e) for key, one in manifest.folders.items() for name, e in one.files.items()]
        return sorted(f"{key}/{name}".strip("/") for key, name, e in found if wrong & set(e.pieces))


def _piece(stream: IO[bytes]) -> bytes:
    """The next whole piece: a pipe gives less than it is asked for."""
    gathered = bytearray()
    while len(gathered) < PIECE_BYTES and (data := stream.read(PIECE_BYTES - len(gathered))):
        gathered += data
    return bytes(gathered)


def _place(piece: str) -> str:
    return f"pieces/{piece[:2]}/{piece}"
