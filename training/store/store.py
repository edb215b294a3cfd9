"""Folders go to the store and come from it."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import IO

from training.store import locals as copies
from training.store.errors import DamagedError, NotInStoreError, StoreError
from training.store.listings import Entry, Listing, files_below, pieces_of
from training.store.objects import Objects

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
        with copies.locked(origin):
            before = self.listing(key)
            listing = self._sent(key, origin, left_out)
            earlier = before.digest if before else ""
            # Before the listing is written: a crash in between must not let this copy pass for an old one.
            copies.remember(origin, copies.Known((earlier, listing.digest)))
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
            for data in pieces_of(stream, stat.st_size):
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
        with copies.locked(into):
            if into.exists():
                return into
            draft = copies.draft_of(into)
            listing = self._with_a_listing(key, lambda new: self._bring_all(key, new, draft))
            source = draft
            if set(listing.files) == {into.name}:
                source = draft / into.name
            copies.remember(into, copies.Known((listing.digest,)))
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
        if (first := self.listing(key)) is None or copies.known_of(into).covers(first.digest, left_out):
            return False
        with copies.locked(into, wait=wait) as ours:
            listing = self.listing(key) if ours else None
            if listing is None or copies.known_of(into).covers(listing.digest, left_out):
                return False
            # Half-way it is neither the old one nor the new one.
            copies.forget(into)
            listing = self._with_a_listing(key, lambda new: self._renew(key, new, into, left_out, local))
            copies.remember(into, copies.Known((listing.digest,), tuple(left_out)))
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
        pieces = list(pieces_of(stream, entry.size))
    sizes = entry.sizes()
    for data, piece, size in zip(pieces, entry.pieces, sizes, strict=False):
        if len(data) == size and hashlib.sha256(data).hexdigest() != piece:
            return False
    return True


def _listing_name(key: str) -> str:
    return f"listings/{key}.json"


def _pieces_name(key: str) -> str:
    return f"pieces/{key}"
