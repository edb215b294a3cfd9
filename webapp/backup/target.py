"""Storage of back-ups: manifests, and streams of the database and the archive beside them."""

from __future__ import annotations

import errno
import hashlib
import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

from training.contract.files import canonical_json, make_private_folder
from training.store import DamagedError, NotInStoreError, Objects, require_plain


class BackupError(Exception):
    """A back-up or restore failed without losing anything; the message names the remedy."""


FORMAT = 2
KINDS = ("snapshots", "checkpoints", "runs", "imports", "models")
SECRETS = "secret_key"
"""The key that encrypts second factors in the database."""
DATABASE, ARCHIVE = "database", "files.tar"
BLOCK_BYTES = 1024**2
_MANIFEST = "manifest.json"
_FOLDER = "archives"
_OF_1_0 = "backups"
"""Folder of the manifests of Rondo 1.0, whose back-ups shared pieces."""
_NAME = "%Y%m%dT%H%M%S.%fZ"
_ABANDONED = timedelta(days=1)
"""A back-up without a manifest was cut off when it is older; a younger one may still be written."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class File:
    """Size and digest of a file of a back-up."""

    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BackupManifest:
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
    database: File
    archive: File
    folders: Mapping[str, Mapping[str, File]] = field(default_factory=dict)
    """Files by name, by folder below RONDO_HOME; an uploaded file and the secret key are named ''."""

    @property
    def size(self) -> int:
        """Total bytes."""
        return self.database.size + self.archive.size

    @property
    def paths(self) -> dict[str, File]:
        """Return the files by their path below RONDO_HOME."""
        return {
            f"{key}/{name}" if name else key: file
            for key, files in self.folders.items()
            for name, file in files.items()
        }

    def to_bytes(self) -> bytes:
        """Serialise the manifest, with a digest of itself."""
        plain = {"format": FORMAT, **asdict(self)}
        digest = hashlib.sha256(canonical_json(plain).encode()).hexdigest()
        return (canonical_json({**plain, "digest": digest}) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> BackupManifest:
        """Parse the output of `to_bytes`. Raise `BackupError` for anything else and for unsafe names."""
        try:
            plain = json.loads(data)
            digest = plain.pop("digest")
            if digest != hashlib.sha256(canonical_json(plain).encode()).hexdigest():
                raise ValueError("its digest is another")
            if plain.pop("format") != FORMAT:
                raise ValueError("it has another format than this Rondo reads")
            manifest = cls(
                time=plain["time"],
                commit=plain["commit"],
                vendor=plain["vendor"],
                migrations=tuple(plain["migrations"]),
                rows=plain["rows"],
                database=_file(plain["database"]),
                archive=_file(plain["archive"]),
                folders={
                    key: {name: _file(file) for name, file in files.items()}
                    for key, files in plain["folders"].items()
                },
            )
            for key in manifest.folders:
                kind, _, name = key.partition("/")
                if key != SECRETS and (kind not in KINDS or not name or "/" in name):
                    raise ValueError(f"it holds {key[:200]!r}, which no Rondo puts there")
            for path in (*manifest.folders, *manifest.paths):
                require_plain(path, where=where)
            for key, files in manifest.folders.items():
                for name in filter(None, files):
                    require_plain(name, where=f"{key} in {where}")
        except (ValueError, KeyError, TypeError, AttributeError, DamagedError) as error:
            raise BackupError(f"The back-up {where} is damaged: {error}. Take an earlier one.") from error
        return manifest


def _file(plain: Any) -> File:
    file = File(plain["size"], plain["sha256"])
    if not isinstance(file.size, int) or file.size < 0 or not _DIGEST.fullmatch(file.sha256):
        raise ValueError("a file without size or SHA-256")
    return file


class BackupWriter:
    """A stream into a back-up that counts and digests what goes through it."""

    def __init__(self, stream: IO[bytes], address: str) -> None:
        self._stream, self._address = stream, address
        self._digest, self._size = hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        """Write all of `data`. Raise `BackupError` where the target takes nothing more."""
        self._digest.update(data)
        self._size += len(data)
        with _plain_errors(self._address):
            self._stream.write(data)
        return len(data)

    @property
    def file(self) -> File:
        """Return size and digest of what was written."""
        return File(self._size, self._digest.hexdigest())


class _DigestReader:
    """A stream of a back-up that digests what is read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self.digest = stream, hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self.digest.update(data)
        return data


class Target:
    """A folder or bucket of back-ups. Methods raise `StoreError` if it fails."""

    def __init__(self, address: str) -> None:
        """Open `address`: a path, or a URL of fsspec."""
        self.address = address
        self._folder = None if "://" in address else Path(address).resolve()
        self._objects = Objects(f"file://{self._folder}" if self._folder else address)

    def make_private(self) -> None:
        """Make the folder readable for its owner only, also if it existed before."""
        if self._folder is None:
            return
        try:
            for folder in (self._folder, self._folder / _FOLDER):
                make_private_folder(folder)
        except OSError as error:
            raise BackupError(
                f"{self._folder} cannot be written: {error.strerror}. Change its owner, or name another."
            ) from error

    def names(self) -> list[str]:
        """Return the names of the back-ups, oldest first."""
        paths = (path.split("/") for path in self._objects.sizes(_FOLDER))
        return sorted(path[0] for path in paths if path[1:] == [_MANIFEST])

    def names_of_1_0(self) -> list[str]:
        """Return the names of the back-ups that Rondo 1.0 made, oldest first."""
        names = self._objects.sizes(_OF_1_0)
        return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))

    def manifest(self, name: str = "") -> BackupManifest:
        """Return the manifest of a back-up, by default the newest. Raise `BackupError`."""
        names = self.names()
        if not names or (name and name not in names):
            old = [old for old in self.names_of_1_0() if name in ("", old)]
            if old:
                raise BackupError(
                    f"{old[-1]} in {self.address} was made by Rondo 1.0, which kept files in pieces. Restore "
                    "it with Rondo 1.0, then upgrade."
                )
            raise BackupError(f"{self.address} holds no back-up{f' named {name}' if name else ''}.")
        chosen = name or names[-1]
        data = self._objects.read(f"{_FOLDER}/{chosen}/{_MANIFEST}")
        return BackupManifest.from_bytes(data, where=f"{chosen} in {self.address}")

    def write_manifest(self, name: str, manifest: BackupManifest) -> None:
        """Write the manifest, which completes the back-up."""
        self._objects.write(f"{_FOLDER}/{name}/{_MANIFEST}", manifest.to_bytes())

    @contextmanager
    def new_backup(self, now: datetime) -> Iterator[str]:
        """Yield the name of a new back-up, of which nothing stays where the block fails.

        Remove those that were cut off before.
        """
        for path in {path.split("/")[0] for path in self._objects.sizes(_FOLDER)} - set(self.names()):
            with suppress(ValueError):
                if datetime.strptime(path, _NAME).replace(tzinfo=UTC) < now - _ABANDONED:
                    self._remove(path)
        name = now.astimezone(UTC).strftime(_NAME)
        try:
            yield name
        except BaseException:
            # Without a manifest it counts as none, whatever stays of it.
            with suppress(Exception):
                self._remove(name)
            raise

    def forget_all_but(self, count: int) -> list[str]:
        """Remove all but the newest `count` back-ups. Return their names."""
        gone = self.names()[:-count]
        for name in gone:
            self._remove(name)
        return gone

    def _remove(self, name: str) -> None:
        # The manifest first: what is half removed is none.
        for part in (_MANIFEST, DATABASE, ARCHIVE):
            self._objects.remove(f"{_FOLDER}/{name}/{part}")
        if self._folder is not None:
            with suppress(FileNotFoundError):
                (self._folder / _FOLDER / name).rmdir()

    @contextmanager
    def writing(self, name: str, part: str) -> Iterator[BackupWriter]:
        """Yield a stream into a part of a back-up; complete, and on the disk, once the block ends."""
        with self._objects.writing(f"{_FOLDER}/{name}/{part}") as stream:
            yield BackupWriter(stream, self.address)

    @contextmanager
    def reading(self, name: str, part: str) -> Iterator[IO[bytes]]:
        """Yield a part of a back-up. Raise `BackupError` where it is missing."""
        try:
            with self._objects.reading(f"{_FOLDER}/{name}/{part}") as stream:
                yield stream
        except NotInStoreError:
            raise BackupError(
                f"The back-up in {self.address} is damaged: {part} is missing. Take an earlier one."
            ) from None

    def damaged(self, name: str, manifest: BackupManifest) -> list[str]:
        """Read everything of a back-up once. Return the damaged files."""
        with self.reading(name, DATABASE) as stream:
            database = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
        found: dict[str, str] = {}
        with self.reading(name, ARCHIVE) as stream:
            whole = _DigestReader(stream)
            with suppress(tarfile.TarError, EOFError, ValueError):
                for member, content in members(whole):
                    found[member] = hashlib.file_digest(content, "sha256").hexdigest()  # type: ignore[arg-type]
            while whole.read(BLOCK_BYTES):
                pass
        wrong = [path for path, file in manifest.paths.items() if found.get(path) != file.sha256]
        if not wrong and whole.digest.hexdigest() != manifest.archive.sha256:
            wrong = [ARCHIVE]
        return sorted(wrong + ([DATABASE] if database != manifest.database.sha256 else []))


def members(stream: Any) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield path and content of each regular file of an archive, which is read from front to back once."""
    with tarfile.open(fileobj=stream, mode="r|", bufsize=BLOCK_BYTES) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isreg() else None
            if content is not None:
                yield member.name, content


@contextmanager
def _plain_errors(address: str) -> Iterator[None]:
    """Raise errors of writing as `BackupError` with the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BackupError(
                f"{address} is full, and nothing was kept. Free some space there, or keep fewer back-ups "
                "(--keep), then start again."
            ) from error
        raise BackupError(
            f"{address} takes nothing ({error.strerror or error}). Nothing was kept."
        ) from error
    except Exception as error:
        # Every store's library has errors of its own.
        raise BackupError(f"{address} takes nothing ({error}). Nothing was kept.") from error
