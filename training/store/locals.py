"""Local files next to a folder's copy: a lock, and the versions that the copy includes."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from training.contract import write_atomically


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


def known_of(folder: Path) -> Known:
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


def draft_of(folder: Path) -> Path:
    """Return the draft path that a folder is fetched to."""
    return _sibling(folder, "fetching")


def _sibling(folder: Path, what: str) -> Path:
    return folder.with_name(f".{folder.name}.{what}")
