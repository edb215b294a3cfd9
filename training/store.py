"""Folders in a store that several machines reach: S3, another machine's disk, whatever fsspec knows.

    listings/KEY.json       which files a folder has: size, SHA-256, and the pieces of each; written last
    pieces/KEY/SHA256       the pieces; each is known by what is in it

A folder is there once its listing is, so nobody sees half of one. A piece that is there is never sent again,
so what was cut off goes on where it stopped, and a file that only grew costs its last piece. Knows no
database and no Django: the model server reads from here too.

fsspec does the transfers, to S3 as to a disk; django-storages would bring Django into the model server.
Neither publishes a folder at once, resumes an upload by pieces or verifies them, which this module adds.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from training.contract import ContractError
from training.contract.files import FILE_MODE, canonical_json, make_private_folder, write_atomically


class StoreError(OSError):
    """The store cannot give or take what it was asked for."""


class StoreUnreachableError(StoreError):
    """The store does not answer, or lets us not in: the same may be tried again later."""


class NotInStoreError(StoreError):
    """There is nothing of that name."""


class DamagedError(StoreError):
    """The store's content differs from the published one."""


# ── Contents of a folder: names, sizes and digests of its files, and the pieces that store them ──


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


def read_pieces(stream: IO[bytes], size: int) -> Iterator[bytes]:
    """The first `size` bytes of a stream in pieces; fewer where it ends before."""
    left = size
    while left > 0 and (piece := stream.read(min(PIECE_BYTES, left))):
        left -= len(piece)
        yield piece


# ── Local files next to a folder's copy: a lock, and the versions that the copy includes ──


@dataclass(frozen=True, slots=True)
class Known:
    """Versions that a copy includes."""

    digests: tuple[str, ...] = ()
    """The copy holds all that these listings name, or more: it was sent or fetched so."""
    left_out: tuple[str, ...] = ()
    """Names in these listings, at the top of the folder, that were not fetched."""

    def covers(self, digest: str, left_out: Sequence[str]) -> bool:
        """Return whether nothing of a listing is new to the copy, but for what is left out."""
        return digest in self.digests and set(self.left_out) <= set(left_out)


@contextmanager
def locked(folder: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a copy alone, among all processes of this machine; yield True if it was free."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _sibling(folder, "lock").open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


def read_known(folder: Path) -> Known:
    """Return the recorded versions of a copy; empty without a record."""
    try:
        stored = json.loads(_sibling(folder, "store.json").read_text(encoding="utf-8"))
        return Known(tuple(stored["digests"]), tuple(stored["left_out"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Known()


def remember(folder: Path, known: Known) -> None:
    """Write down what a copy is."""
    plain = {"digests": known.digests, "left_out": known.left_out}
    write_atomically(_sibling(folder, "store.json"), json.dumps(plain) + "\n")


def forget(folder: Path) -> None:
    """Forget a copy that is gone or is to be fetched again."""
    _sibling(folder, "store.json").unlink(missing_ok=True)


def draft_path(folder: Path) -> Path:
    """Return the draft path that a folder is fetched to."""
    return _sibling(folder, "fetching")


def _sibling(folder: Path, what: str) -> Path:
    return folder.with_name(f".{folder.name}.{what}")


# ── Named bytes in any file system that fsspec knows: written whole or not at all, errors in plain words ──


_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
_MOST_CHARACTERS = 300
_BLOCK_BYTES = 64 * 1024**2
"""Of a stream into a bucket: S3 takes 10,000 of them, 625 GiB."""


class Objects:
    """Objects below one address.

    Keys and passwords come from where the store's own library looks for them (for S3 `AWS_ACCESS_KEY_ID`,
    `AWS_SECRET_ACCESS_KEY`, `AWS_ENDPOINT_URL`), never from the address.
    """

    def __init__(self, url: str) -> None:
        """Raises `StoreError` for an address that nothing here can open. Asks nobody yet."""
        # Imported late: a Rondo without a store has no use for it.
        import fsspec

        self.url = url
        protocol = url.partition("://")[0]
        try:
            self._files, root = fsspec.core.url_to_fs(url, **_options(protocol))
        except ImportError:
            package = _PACKAGES.get(protocol, f"the fsspec package for {protocol!r}")
            raise StoreError(f"The store {url} needs a package: run `pip install {package}`.") from None
        except ValueError as error:
            raise StoreError(f"The store {url} has an address that cannot be read: {error}.") from None
        self._root = root.rstrip("/")
        self._is_local = "file" in _protocols(self._files)

    def write(self, name: str, data: bytes) -> None:
        """Put bytes under a name, in place of what was there; readers see the one or the other."""
        path = self._path(name)
        with self._translated_errors():
            try:
                if self._is_local:
                    _write_local(Path(path), data)
                else:
                    self._files.pipe_file(path, data)
            except FileNotFoundError as error:
                # A bucket that is not there: an object store makes "folders" by itself.
                raise StoreUnreachableError(
                    f"The store {self.url} takes nothing: {_error_text(error)}."
                ) from None

    def read(self, name: str) -> bytes:
        """Return the bytes under a name. Raises `NotInStoreError`."""
        with self._translated_errors():
            try:
                data: bytes = self._files.cat_file(self._path(name))
            except FileNotFoundError:
                raise NotInStoreError(f"The store {self.url} holds no {name}.") from None
        return data

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """Yield a stream into a new object. Where the block fails, what is there is not whole.

        The caller translates errors of the stream, and makes the object count once it is complete.
        """
        path = self._path(name)
        if self._is_local:
            with self._translated_errors():
                make_private_folder(Path(path).parent)
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
            with os.fdopen(descriptor, "wb") as stream:
                yield stream
                with self._translated_errors():
                    stream.flush()
                    os.fsync(stream.fileno())
            return
        with self._translated_errors():
            remote = self._files.open(path, "wb", block_size=_BLOCK_BYTES)
        try:
            yield remote
        except BaseException:
            with suppress(Exception):
                remote.discard()
            remote.closed = True
            raise
        with self._translated_errors():
            remote.close()

    @contextmanager
    def reading(self, name: str) -> Iterator[IO[bytes]]:
        """Yield a stream from an object. Raises `NotInStoreError`."""
        with self._translated_errors():
            try:
                stream = self._files.open(self._path(name), "rb")
            except FileNotFoundError:
                raise NotInStoreError(f"The store {self.url} holds no {name}.") from None
        with stream:
            yield stream

    def sizes(self, below: str) -> dict[str, int]:
        """Return names, from `below` on, and sizes of everything below it."""
        path = self._path(below)
        with self._translated_errors():
            self._files.invalidate_cache()
            try:
                entries = self._files.find(path, detail=True)
            except FileNotFoundError:
                return {}
        start = len(self._files._strip_protocol(path)) + 1
        return {
            name[start:]: int(about.get("size") or 0)
            for name, about in entries.items()
            if not name.endswith(".draft")
        }

    def remove(self, name: str) -> None:
        """Remove one object; nothing where there is none."""
        with self._translated_errors():
            try:
                self._files.rm_file(self._path(name))
            except FileNotFoundError:
                return

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Every library has errors of its own; what they mean here is that the store does not answer."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            raise StoreUnreachableError(
                f"The store {self.url} does not answer ({_error_text(error)}). "
                "Check RONDO_STORE_URL, its keys and the network; it is tried again."
            ) from error


def _options(protocol: str) -> dict[str, Any]:
    """Never a list of yesterday's names; and of a server that is silent one hears within a minute."""
    if protocol not in ("s3", "s3a"):
        return {}
    patience = {"connect_timeout": 5, "read_timeout": 30, "retries": {"max_attempts": 2}}
    return {"use_listings_cache": False, "config_kwargs": patience}


def _protocols(files: Any) -> tuple[str, ...]:
    named = files.protocol
    return (named,) if isinstance(named, str) else tuple(named)


def _error_text(error: Exception) -> str:
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}: {words[0][:_MOST_CHARACTERS]}" if words else type(error).__name__


def _write_local(path: Path, data: bytes) -> None:
    make_private_folder(path.parent)
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}.draft")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


# ── Folders go to the store and come from it ──


_TRIES = 3
"""A folder that is being written changes while it is sent or fetched; it is looked at again."""
_GROW = (".jsonl", ".txt")
"""Suffixes of files that a trainer appends to; everything else it replaces whole."""


class Store:
    """One store. Its methods raise `StoreUnreachableError` where it does not answer.

    What is here of a folder stays as it was then, and the next try goes on where this one stopped.
    """

    def __init__(self, url: str) -> None:
        """Raises `StoreError` for an address that nothing here can open."""
        self._objects = Objects(url)
        self._digested: dict[Path, tuple[tuple[int, int, int], Entry]] = {}

    # ── sending ───────────────────────────────────────────────────────────────────────
    def publish(
        self,
        key: str,
        origin: Path,
        *,
        left_out: Sequence[str] = (),
        still_ours: Callable[[], object] = lambda: None,
    ) -> Listing:
        """Send a folder, or one file; others see it whole, in place of what was there, once this returns.

        left_out: names at its top that stay here. still_ours: called before others see it; may raise.
        """
        with locked(origin):
            before = self.listing(key)
            listing = self._sent(key, origin, left_out)
            earlier = before.digest if before else ""
            # Before the listing is written: a crash in between must not let this copy pass for an old one.
            remember(origin, Known((earlier, listing.digest)))
            if listing.digest == earlier:
                return listing
            still_ours()
            self._objects.write(_listing_name(key), listing.to_bytes())
            # Who fetches now may have read the listing before this one; older ones are read again.
            self._tidy(key, listing.pieces | (before.pieces if before else set()))
        return listing

    def offer(self, key: str, origin: Path) -> None:
        """Send a folder that the store has nothing of. Raises `StoreError` for one with links in it.

        What a link leads to is not sent, and a base model without its weights would be worse than none.
        """
        if self.listing(key) is not None:
            return
        if any(path.is_symlink() for path in origin.rglob("*")):
            raise StoreError(
                f"{origin} holds links, and so is not sent to {self._objects.url}: copy the files."
            )
        self.publish(key, origin)

    def _sent(self, key: str, origin: Path, left_out: Sequence[str]) -> Listing:
        there = self._objects.sizes(_pieces_name(key))
        for _ in range(_TRIES):
            if not origin.exists():
                raise StoreError(f"{origin} is not here, so it is not sent.")
            try:
                files = {
                    name: self._sent_file(key, path, there)
                    for name, path in files_below(origin, left_out=left_out)
                }
                return Listing(files)
            except FileNotFoundError:
                continue
        raise StoreError(f"{origin} changes faster than it can be sent; it is tried again.")

    def _sent_file(self, key: str, path: Path, there: dict[str, int]) -> Entry:
        stat = path.stat()
        mark = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        known = self._digested.get(path)
        if known and known[0] == mark and all(piece in there for piece in known[1].pieces):
            return known[1]
        whole, size, pieces = hashlib.sha256(), 0, []
        with path.open("rb") as stream:
            for data in read_pieces(stream, stat.st_size):
                piece = hashlib.sha256(data).hexdigest()
                if there.get(piece) != len(data):
                    self._objects.write(f"{_pieces_name(key)}/{piece}", data)
                    there[piece] = len(data)
                whole.update(data)
                size += len(data)
                pieces.append(piece)
        entry = Entry(size, whole.hexdigest(), tuple(pieces))
        self._digested[path] = (mark, entry)
        return entry

    def _tidy(self, key: str, needed: Collection[str]) -> None:
        for piece in self._objects.sizes(_pieces_name(key)):
            if piece not in needed:
                self._objects.remove(f"{_pieces_name(key)}/{piece}")

    # ── fetching ──────────────────────────────────────────────────────────────────────
    def fetch(self, key: str, into: Path) -> Path:
        """Bring what never changes once it is there: a checkpoint, a snapshot, a model, one uploaded file.

        What is here already is taken as it is; else `into` is there whole at once, every piece of it checked.
        Raises `NotInStoreError`, and `DamagedError` where the store holds something else than was sent.
        """
        if into.exists():
            return into
        with locked(into):
            if into.exists():
                return into
            draft = draft_path(into)
            listing = self._with_a_listing(key, lambda new: self._bring_all(key, new, draft))
            source = draft
            if set(listing.files) == {into.name}:
                source = draft / into.name
            remember(into, Known((listing.digest,)))
            os.replace(source, into)
            shutil.rmtree(draft, ignore_errors=True)
        return into

    def _bring_all(self, key: str, listing: Listing, draft: Path) -> None:
        draft.mkdir(parents=True, exist_ok=True)
        for name, entry in listing.files.items():
            self._bring(key, name, entry, draft / name)
        for name, path in files_below(draft):
            if name not in listing.files:
                path.unlink()

    def refresh(
        self,
        key: str,
        into: Path,
        *,
        left_out: Sequence[str] = (),
        local: Collection[str] = (),
        wait: bool = False,
    ) -> bool:
        """Bring a folder that others write up to what the store holds; return True if anything came.

        left_out: top-level names that are not fetched. local: top-level files that stay.
        wait: for another process that sends or fetches the folder here; else nothing comes meanwhile.
        Nothing comes to a copy that is at least as new, and where the store holds nothing of it. Each file is
        replaced whole, or grows, as it did where it was written.
        """
        if (first := self.listing(key)) is None or read_known(into).covers(first.digest, left_out):
            return False
        with locked(into, wait=wait) as ours:
            listing = self.listing(key) if ours else None
            if listing is None or read_known(into).covers(listing.digest, left_out):
                return False
            # Half-way it is neither the old one nor the new one.
            forget(into)
            listing = self._with_a_listing(key, lambda new: self._renew(key, new, into, left_out, local))
            remember(into, Known((listing.digest,), tuple(left_out)))
        return True

    def _renew(
        self, key: str, listing: Listing, into: Path, left_out: Sequence[str], local: Collection[str]
    ) -> None:
        into.mkdir(parents=True, exist_ok=True)
        listed_files = {n: e for n, e in listing.files.items() if n.partition("/")[0] not in left_out}
        for name, entry in listed_files.items():
            target = into / name
            if not _grows_into(target, entry):
                self._bring(key, name, entry, target.with_name(f".{target.name}.fetching"), then=target)
            else:
                self._bring(key, name, entry, target)
        for name, path in files_below(into, left_out=(*left_out, *local)):
            if name not in listed_files:
                path.unlink(missing_ok=True)
        for folder in sorted(
            (subfolder for subfolder in into.rglob("*") if subfolder.is_dir()), reverse=True
        ):
            if not any(folder.iterdir()):
                folder.rmdir()

    def _with_a_listing(self, key: str, bring: Callable[[Listing], None]) -> Listing:
        """Return the listing that was fetched whole; read it again if pieces went meanwhile."""
        tried = ""
        for _ in range(_TRIES):
            listing = self.listing(key)
            if listing is None:
                raise NotInStoreError(f"The store {self._objects.url} holds no {key}.")
            if listing.digest == tried:
                break
            tried = listing.digest
            try:
                bring(listing)
            except NotInStoreError:
                continue
            return listing
        raise DamagedError(
            f"The store {self._objects.url} lacks a piece of {key}: put it back from a copy of the store."
        )

    def _bring(self, key: str, name: str, entry: Entry, target: Path, *, then: Path | None = None) -> None:
        """Make a file what its entry says; what is right of it already is not fetched again."""
        target.parent.mkdir(parents=True, exist_ok=True)
        whole = hashlib.sha256()
        with target.open("r+b" if target.exists() else "x+b") as stream:
            for data in self._pieces(key, name, entry, stream):
                whole.update(data)
            stream.truncate(entry.size)
        if whole.hexdigest() != entry.sha256:
            target.unlink()
            raise DamagedError(f"{name} of {key} is not what was sent to {self._objects.url}.")
        if then is not None:
            os.replace(target, then)

    def _pieces(self, key: str, name: str, entry: Entry, stream: IO[bytes]) -> Iterator[bytes]:
        for piece, size in zip(entry.pieces, entry.sizes(), strict=True):
            place = stream.tell()
            data = stream.read(size)
            if len(data) != size or hashlib.sha256(data).hexdigest() != piece:
                data = self._objects.read(f"{_pieces_name(key)}/{piece}")
                if len(data) != size or hashlib.sha256(data).hexdigest() != piece:
                    raise DamagedError(
                        f"{name} of {key} is damaged in the store {self._objects.url}: a piece of it is not "
                        "what was sent. Put it back from a copy of the store, or publish the folder anew."
                    )
                stream.seek(place)
                stream.write(data)
            yield data

    # ── looking and removing ──────────────────────────────────────────────────────────
    def listing(self, key: str) -> Listing | None:
        """Return the store's listing of a folder; None without one."""
        name = _listing_name(key)
        try:
            data = self._objects.read(name)
        except NotInStoreError:
            return None
        return Listing.from_bytes(data, where=f"{name} in {self._objects.url}")

    def names(self, parent: str) -> list[str]:
        """Return the folders directly below `parent`, by name."""
        sizes = self._objects.sizes(f"listings/{parent}")
        return sorted(name.removesuffix(".json") for name in sizes if "/" not in name)

    def read(self, key: str, name: str) -> bytes:
        """Return one small file of a folder. Raises `NotInStoreError`."""
        listing = self.listing(key)
        if listing is None or name not in listing.files:
            raise NotInStoreError(f"The store {self._objects.url} holds no {name} of {key}.")
        return b"".join(
            self._objects.read(f"{_pieces_name(key)}/{piece}") for piece in listing.files[name].pieces
        )

    def piece(self, key: str, piece: str) -> bytes:
        """Return one piece of a folder, unchecked. Raises `NotInStoreError`."""
        return self._objects.read(f"{_pieces_name(key)}/{piece}")

    def damaged(self, key: str) -> list[str]:
        """Read every piece of a folder; return the files that differ from those sent."""
        listing = self.listing(key)
        if listing is None:
            raise NotInStoreError(f"The store {self._objects.url} holds no {key}.")
        return sorted(name for name, entry in listing.files.items() if not self._is_intact(key, entry))

    def _is_intact(self, key: str, entry: Entry) -> bool:
        for piece in entry.pieces:
            try:
                data = self._objects.read(f"{_pieces_name(key)}/{piece}")
            except NotInStoreError:
                return False
            if hashlib.sha256(data).hexdigest() != piece:
                return False
        return True

    def remove(self, key: str, *, inside: str = "") -> None:
        """Remove a folder, or what lies in `inside` at its top; for others it is gone at once."""
        listing = self.listing(key)
        remaining: dict[str, Entry] = {}
        if listing is not None and inside:
            remaining = {n: e for n, e in listing.files.items() if n.partition("/")[0] != inside}
            self._objects.write(_listing_name(key), Listing(remaining).to_bytes())
        else:
            self._objects.remove(_listing_name(key))
        self._tidy(key, Listing(remaining).pieces)


def _grows_into(target: Path, entry: Entry) -> bool:
    """Return whether the local file is a prefix of the new version, so that it is appended to."""
    if target.suffix not in _GROW or target.is_symlink() or not target.is_file():
        return False
    if target.stat().st_size > entry.size:
        return False
    with target.open("rb") as stream:
        pieces = list(read_pieces(stream, entry.size))
    sizes = entry.sizes()
    for data, piece, size in zip(pieces, entry.pieces, sizes, strict=False):
        if len(data) == size and hashlib.sha256(data).hexdigest() != piece:
            return False
    return True


def _listing_name(key: str) -> str:
    return f"listings/{key}.json"


def _pieces_name(key: str) -> str:
    return f"pieces/{key}"
