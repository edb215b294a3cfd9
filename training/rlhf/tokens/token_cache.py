"""Token ids of a snapshot's texts on disk: memory-mapped, never held as Python numbers.

    CACHE/tokens-KEY/   KEY follows from the snapshot's digest and from the tokenizer with its chat template
        header.json     how many of what, and the digests of the files beside it
        index.npy       one row per text: its digest, where its tokens lie, where the answer begins,
                        how many of its tokens are masked
        tokens.bin      int32, one text after the other; where places were wanted, their pairs follow

A text is found by the digest of its chat, its answer and what becomes of its thinking, so another setting
(context passages, other texts that are wanted) finds what is the same and adds what is new. The folder may be
deleted at any time; a damaged file is written again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from training.contract import Message, canonical_json, sha256_of_file
from training.contract.chat_template import Thinking
from training.rlhf.runtime.run_folder import log
from training.rlhf.tokens.encoding import Answered, Numbers, Stored

_FORMAT = 3
_HEADER, _INDEX, _TOKENS = "header.json", "index.npy", "tokens.bin"
_ROW = np.dtype(
    [
        ("key", "<u8"),
        ("check", "<u8"),
        ("start", "<i8"),
        ("tokens", "<i4"),
        ("first", "<i4"),
        ("places", "<i4"),
        ("masked", "<i4"),
    ]
)
_SPOOLED = 1 << 20
"""Numbers that are held before they are written: 4 MB."""

Encode = Callable[..., Answered]


class TokenCache:
    """Tokenises what is not known yet, and keeps it."""

    def __init__(self, folder: Path, *, snapshot_digest: str, tokenizer: Any, writes: bool = True) -> None:
        """Open the cache below `folder`. With `writes` off it only reads: one process of a run writes."""
        key = hashlib.sha256(f"{_FORMAT} {snapshot_digest} {tokenizer_digest(tokenizer)}".encode())
        self._folder = folder / f"tokens-{key.hexdigest()[:32]}"
        self._writes = writes
        self._index = np.empty(0, _ROW)
        self._stored: Numbers = np.empty(0, np.int32)
        self._open()
        self._spool: _Spool | None = None
        self._added: dict[tuple[int, int], tuple[int, int, int, int, int]] = {}
        self.tokenised = 0
        """Texts that were not there."""

    def encode(
        self,
        encode: Encode,
        messages: Sequence[Message],
        answer: str,
        *,
        offsets: bool = False,
        thinking: Thinking = "train",
    ) -> Answered:
        """Return a chat and its completion encoded by `encode`, through the cache.

        `thinking` is what it makes of an answer's thinking. What `encode` raises is not kept.
        """
        key = _digest(messages, answer, offsets, thinking)
        if row := self._find(key):
            return self._answered(self._read_stored, *row)
        if key not in self._added:
            self._added[key] = self._append(encode(messages, answer, offsets=offsets))
            self.tokenised += 1
        return self._answered(self._spooled.read, *self._added[key])

    def save(self) -> None:
        """Write what was added, whole or not at all. Without room on the disk the run goes on without it."""
        if not self._added or not self._writes:
            return
        try:
            self._write()
        except OSError as error:
            log.warning("The tokens cannot be kept for the next run (%s)", error)

    def _write(self) -> None:
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=self._folder.parent, prefix=".tokens-"))
        try:
            with (partial / _TOKENS).open("wb") as stream:
                self._stored.tofile(stream)
                self._spooled.copy_to(stream)
            base = len(self._stored)
            rows = [(*key, base + start, *others) for key, (start, *others) in self._added.items()]
            index = np.concatenate([self._index, np.array(rows, _ROW)])
            np.save(partial / _INDEX, np.sort(index, order=("key", "check")))
            digests = {name: sha256_of_file(partial / name) for name in (_INDEX, _TOKENS)}
            (partial / _HEADER).write_text(canonical_json({"format": _FORMAT, "files": digests}) + "\n")
            shutil.rmtree(self._folder, ignore_errors=True)
            partial.rename(self._folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _open(self) -> None:
        if not (self._folder / _HEADER).is_file():
            return
        try:
            files = json.loads((self._folder / _HEADER).read_text())["files"]
            for name in (_INDEX, _TOKENS):
                if files[name] != sha256_of_file(self._folder / name):
                    raise ValueError(f"{name} is not what was written")
            index = np.load(self._folder / _INDEX, allow_pickle=False)
            if index.dtype != _ROW:
                raise ValueError(f"{_INDEX} is of another kind")
            self._stored = np.memmap(self._folder / _TOKENS, np.int32, mode="r")
            self._index = index
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.info("%s is damaged (%s); the texts are tokenised again", self._folder, error)

    def _find(self, key: tuple[int, int]) -> tuple[int, int, int, int, int] | None:
        place = int(np.searchsorted(self._index["key"], np.uint64(key[0])))
        if place == len(self._index) or (row := self._index[place].item())[:2] != key:
            return None
        start, tokens, first, places, masked = row[2:]
        return start, tokens, first, places, masked

    def _append(self, answered: Answered) -> tuple[int, int, int, int, int]:
        flat = [number for pair in answered.offsets for number in pair]
        start = self._spooled.append([*answered.ids, *flat])
        return start, len(answered.ids), answered.answer_start, len(flat), answered.masked

    @staticmethod
    def _answered(
        read: Callable[[int, int], Numbers], start: int, tokens: int, first: int, places: int, masked: int
    ) -> Answered:
        middle = start + tokens
        offsets = Stored(read, middle, middle + places, pairs=True) if places else ()
        return Answered(Stored(read, start, middle, pairs=False), first, offsets, masked)

    def _read_stored(self, start: int, stop: int) -> Numbers:
        return self._stored[start:stop]

    @property
    def _spooled(self) -> _Spool:
        if self._spool is None:
            self._spool = _Spool()
        return self._spool


class _Spool:
    """Numbers that grow in a nameless file, with only the last of them in memory."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the examples that read it
        self._tail = array("i")
        self._written = 0
        self._mapped: Numbers = np.empty(0, np.int32)

    def append(self, numbers: Sequence[int]) -> int:
        """Put `numbers` at the end; where they begin."""
        if len(self._tail) > _SPOOLED:
            self._tail.tofile(self._file)
            self._file.flush()
            self._written += len(self._tail)
            self._tail = array("i")
            self._mapped = np.memmap(self._file, np.int32, mode="r", shape=(self._written,))
        start = self._written + len(self._tail)
        self._tail.extend(numbers)
        return start

    def read(self, start: int, stop: int) -> Numbers:
        """Return the numbers [start, stop) of one `append`."""
        if start < self._written:
            return self._mapped[start:stop]
        return np.array(self._tail[start - self._written : stop - self._written], np.int32)

    def copy_to(self, stream: Any) -> None:
        """All numbers, in their order."""
        self._mapped.tofile(stream)
        self._tail.tofile(stream)


def tokenizer_digest(tokenizer: Any) -> str:
    """SHA-256 over all that decides how a chat becomes tokens."""
    parts = [tokenizer.backend_tokenizer.to_str(), tokenizer.chat_template]
    parts += [str(tokenizer.bos_token), str(tokenizer.eos_token)]
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()


def _digest(messages: Sequence[Message], answer: str, offsets: bool, thinking: Thinking) -> tuple[int, int]:
    chat = [[message.role, message.content] for message in messages]
    digest = hashlib.blake2b(
        canonical_json([chat, answer, offsets, thinking]).encode(), digest_size=16
    ).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
