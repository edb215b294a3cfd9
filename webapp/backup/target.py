"""Storage of back-ups: manifests, and the pieces that back-ups share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from training.contract import canonical_json
from training.contract.private_files import make_private_folder
from training.store import PIECE_BYTES, DamagedError, Entry, Listing, NotInStoreError, Objects
from training.store.listings import pieces_of
from webapp.backup.errors import BackupError

FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The content of one back-up."""

    time: str
    """Time of the database copy: ISO 8601 with its zone."""
    commit: str
    """Commit of the Rondo that made the back-up; empty if unknown."""
    vendor: str
    """Database vendor: sqlite or postgresql."""
    migrations: tuple[str, ...]
    """Applied migrations, as APP.NAME."""
    rows: Mapping[str, int]
    """Row counts by table."""
    database: Listing
    """A listing of one file."""
    folders: Mapping[str, Listing] = field(default_factory=dict)
    """Listings by path below RONDO_HOME."""

    @property
    def pieces(self) -> set[str]:
        """Digests of all pieces of the back-up."""
        return self.database.pieces.union(*(listing.pieces for listing in self.folders.values()))

    @property
    def size(self) -> int:
        """Total bytes."""
        return self.database.size + sum(listing.size for listing in self.folders.values())

    @property
    def files(self) -> int:
        """Number of files, without the database."""
        return sum(len(listing.files) for listing in self.folders.values())

    def to_bytes(self) -> bytes:
        """Serialise the manifest, with a digest of itself."""
        listed = {key: json.loads(listing.to_bytes()) for key, listing in self.folders.items()}
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
        """Parse the output of `to_bytes`. Raise `BackupError` for anything else."""
        try:
            plain = json.loads(data)
            digest = plain.pop("digest")
            if digest != hashlib.sha256(canonical_json(plain).encode()).hexdigest():
                raise ValueError("its digest is another")
            if plain.pop("format") != FORMAT:
                raise ValueError("it has another format than this Rondo reads")
            folders = plain["folders"].items()
            listings = {key: _listing(listing, f"{key} in {where}") for key, listing in folders}
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
    """A folder or bucket of back-ups. Methods raise `StoreError` if it fails."""

    def __init__(self, address: str) -> None:
        """Open `address`: a path, or a URL of fsspec."""
        self.address = address
        self._folder = None if "://" in address else Path(address).resolve()
        self._objects = Objects(f"file://{self._folder}" if self._folder else address)
        self._there: dict[str, int] | None = None
        self.written = 0
        """Bytes of the pieces that were not there before."""

    def make_private(self) -> None:
        """Make the folder readable for its owner only, also if it existed before."""
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
        """Return the names of the back-ups, oldest first."""
        sizes = self._objects.sizes("backups")
        return sorted(name.removesuffix(".json") for name in sizes if name.endswith(".json"))

    def manifest(self, name: str = "") -> Manifest:
        """Return the manifest of a back-up, by default the newest. Raise `BackupError`."""
        names = self.names()
        if not names or (name and name not in names):
            raise BackupError(f"{self.address} holds no back-up{f' named {name}' if name else ''}.")
        chosen = name or names[-1]
        data = self._objects.read(f"backups/{chosen}.json")
        return Manifest.from_bytes(data, where=f"{chosen} in {self.address}")

    def write_manifest(self, name: str, manifest: Manifest) -> None:
        """Write the manifest, which completes the back-up."""
        self._objects.write(f"backups/{name}.json", manifest.to_bytes())

    def forget_all_but(self, count: int) -> list[str]:
        """Remove all but the newest `count` back-ups and the pieces only they used. Return their names."""
        names = self.names()
        gone = names[:-count]
        manifests = [self.manifest(name) for name in names[-count:]]
        for name in gone:
            self._objects.remove(f"backups/{name}.json")
        needed = set[str]().union(*(manifest.pieces for manifest in manifests))
        for path in self._objects.sizes("pieces"):
            if path.rpartition("/")[2] not in needed:
                self._objects.remove(f"pieces/{path}")
        self._there = None
        return gone

    def put(self, stream: IO[bytes], *, size: int | None = None) -> Entry:
        """Store a stream, to its end or for `size` bytes; existing pieces are not sent."""
        digest, length, pieces = hashlib.sha256(), 0, []
        parts = iter(lambda: _piece(stream), b"") if size is None else pieces_of(stream, size)
        for data in parts:
            digest.update(data)
            length += len(data)
            pieces.append(self.put_piece(data))
        return Entry(length, digest.hexdigest(), tuple(pieces))

    def put_piece(self, data: bytes) -> str:
        """Store a piece. Return its SHA-256."""
        piece = hashlib.sha256(data).hexdigest()
        if not self.has(piece, len(data)):
            self._objects.write(_place(piece), data)
            self.written += len(data)
            self._known()[piece] = len(data)
        return piece

    def has(self, piece: str, size: int) -> bool:
        """Return True if a piece exists, judged by name and size."""
        return self._known().get(piece) == size

    def _known(self) -> dict[str, int]:
        if self._there is None:
            sizes = self._objects.sizes("pieces")
            self._there = {name.rpartition("/")[2]: size for name, size in sizes.items()}
        return self._there

    def content(self, name: str, entry: Entry) -> Iterator[bytes]:
        """Yield a file piece by piece, verified. Raise `BackupError` if a piece is damaged."""
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
        """Read every piece of a back-up once. Return the damaged files."""
        wrong = set()
        for piece in sorted(manifest.pieces):
            try:
                data = self._objects.read(_place(piece))
            except NotInStoreError:
                data = b""
            if hashlib.sha256(data).hexdigest() != piece:
                wrong.add(piece)
        entries = [("", "database", entry) for entry in manifest.database.files.values()]
        for key, folder in manifest.folders.items():
            entries += [(key, name, entry) for name, entry in folder.files.items()]
        return sorted(f"{key}/{name}".strip("/") for key, name, e in entries if wrong & set(e.pieces))


def _piece(stream: IO[bytes]) -> bytes:
    """Read a full piece; a pipe may return less than requested."""
    gathered = bytearray()
    while len(gathered) < PIECE_BYTES and (data := stream.read(PIECE_BYTES - len(gathered))):
        gathered += data
    return bytes(gathered)


def _place(piece: str) -> str:
    return f"pieces/{piece[:2]}/{piece}"
