"""A chat and its answer as token ids: one rendered text, tokenised once, with the answer marked in it."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from training.contract import ContractError
from training.contract.chat_template import ChatTemplate, Thinking
from training.contract.files import canonical_json, sha256_of_file
from training.contract.snapshot import Message
from training.rlhf.model.templates import TurnEnd, renderer
from training.rlhf.runtime.run_folder import log

# ── Sequences of numbers that lie in a file and become Python numbers only while they are looked at ──
#
# A token id takes 4 bytes in a file and about 36 in a tuple: a large snapshot would fill the memory.

Numbers = npt.NDArray[np.int32]


class Stored(Sequence[Any]):
    """Token ids, or pairs of places. Reads, compares and adds as the tuple that it stands for."""

    __slots__ = ("_cut", "_pairs", "_read", "_start", "_stop")

    def __init__(
        self,
        read: Callable[[int, int], Numbers],
        start: int,
        stop: int,
        *,
        pairs: bool = False,
        cut: tuple[int, int] = (0, 0),
    ) -> None:
        """The numbers [start, stop) of what `read` reads, without those at the places [cut) among them."""
        self._read, self._start, self._stop, self._pairs, self._cut = read, start, stop, pairs, cut

    def without(self, low: int, high: int) -> Stored:
        """Return the same without the numbers at [low, high)."""
        if self._cut[1] or self._pairs:
            raise ValueError("only a whole row of token ids can be cut, and once")
        return Stored(self._read, self._start, self._stop, cut=(low, high))

    def _values(self) -> tuple[Any, ...]:
        numbers = self._read(self._start, self._stop)
        if self._pairs:
            return tuple((low, high) for low, high in numbers.reshape(-1, 2).tolist())
        low, high = self._cut
        values: list[int] = numbers.tolist()
        return tuple(values[:low] + values[high:])

    def __len__(self) -> int:
        low, high = self._cut
        return (self._stop - self._start) // (2 if self._pairs else 1) - (high - low)

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Any, ...]: ...
    def __getitem__(self, place: int | slice) -> Any:
        return self._values()[place]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values())

    def __add__(self, other: Iterable[Any]) -> tuple[Any, ...]:
        return (*self._values(), *other)

    def __radd__(self, other: Iterable[Any]) -> tuple[Any, ...]:
        return (*other, *self._values())

    def __eq__(self, other: object) -> bool:
        return self._values() == tuple(other) if isinstance(other, Stored | tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        return repr(self._values())


class EncodedAnswer(NamedTuple):
    """One prompt with one answer, tokenised as one rendered chat that ends with the turn's end token."""

    ids: tuple[int, ...] | Stored
    answer_start: int
    """Index of the first token of the answer; all from there to the end are the answer's."""
    offsets: tuple[tuple[int, int], ...] | Stored = ()
    """Positions of the answer's tokens in its text, [start, end) in code points, one each but for the masked;
    the end token has the empty place after the text. Empty where nobody asked for them."""
    masked: int = 0
    """Number of the answer's first tokens, its thinking, that are read and not learned from."""
    learned: tuple[tuple[int, int], ...] | None = None
    """Runs of the answer's tokens that are learned from, [start, end) each counted from its first token,
    where that is not all of it after `masked`."""

    @property
    def learned_start(self) -> int:
        """Index of the first token that is learned from."""
        return self.answer_start + self.masked

    @property
    def learned_runs(self) -> tuple[tuple[int, int], ...]:
        """Runs of tokens that are learned from, [start, end) each, as indexes into `ids`."""
        if self.learned is None:
            return ((self.learned_start, len(self.ids)),)
        return tuple((low + self.answer_start, high + self.answer_start) for low, high in self.learned)


class Encoder:
    """Turns a chat and its answer into token ids with a model's own chat template."""

    def __init__(self, tokenizer: Any, *, thinking: Thinking = "train") -> None:
        self._tokenizer = tokenizer
        self._template = ChatTemplate(renderer(tokenizer), str(tokenizer.chat_template))
        self.thinking: Thinking = thinking
        """Treatment of the thinking in an answer."""
        self._end = TurnEnd(tokenizer)

    def encode(self, messages: Sequence[Message], answer: str, *, offsets: bool = False) -> EncodedAnswer:
        """Tokenise prompt and answer as the one chat that the template renders.

        The answer's tokens are found by the character offsets of that text, not by a second
        tokenisation. The row ends with the token that ends the turn. Raises `ContractError`
        for text that holds a control token and for a template that rewrites answers.
        """
        self._refuse_control_tokens([*messages, Message(role="assistant", content=answer)])
        placed = self._template.place(messages, answer, thinking=self.thinking)
        start = len(placed.prompt)
        text = placed.prompt + placed.written + self._end.after(placed.rest)
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        places = encoded["offset_mapping"]
        # A token that reaches into the answer is the answer's, also where it begins in the prompt.
        first = next(index for index, (_, end) in enumerate(places) if end > start)
        learned = next(index for index, (_, end) in enumerate(places) if end > start + placed.masked)
        ids = tuple(encoded["input_ids"])
        if not offsets:
            return EncodedAnswer(ids, first, masked=learned - first)
        within = [
            tuple(min(max(place - start + placed.cut, 0), len(answer)) for place in pair)
            for pair in places[learned:]
        ]
        return EncodedAnswer(ids, first, tuple((low, high) for low, high in within), learned - first)

    def encode_prompt(self, messages: Sequence[Message], *, max_tokens: int) -> tuple[tuple[int, ...], int]:
        """A chat up to where its next turn begins, and how many tokens of its front were cut off to fit.

        A beginning-of-text token stays where it is. Raises `ContractError` for text that holds a control
        token and for a chat that the template refuses.
        """
        self._refuse_control_tokens(messages)
        ids = self.chat(messages)
        too_many = max(0, len(ids) - max_tokens)
        head = 1 if too_many and max_tokens > 1 and self.begins(ids) else 0
        return ids[:head] + ids[head + too_many :], too_many

    def chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """A chat up to where its next turn begins. Raises `ContractError` where the template refuses it."""
        # The template writes the beginning-of-text token itself where there is one.
        return tuple(self._tokenizer(self._template.prompt(messages), add_special_tokens=False)["input_ids"])

    def chat_answered_at_once(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """A chat up to where an answer without thinking begins.

        Raises `ContractError` where the template refuses the chat or rewrites answers.
        """
        prompt = self._template.place(messages, "{}").prompt
        return tuple(self._tokenizer(prompt, add_special_tokens=False)["input_ids"])

    def begun(self, messages: Sequence[Message], answer: str) -> tuple[int, ...]:
        """A chat with the beginning of its answer, from which the answer goes on.

        Raises `ContractError` where the template refuses the chat or rewrites answers.
        """
        placed = self._template.place(messages, answer)
        # White space at the end is a part of the beginning, also where the template strips whole answers.
        text = placed.prompt + answer[placed.cut :]
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def undelimited(self, message: Message) -> str:
        """A message's text without delimiters of thinking, which only a model's turn may hold."""
        is_answer = message.role == "assistant"
        return self._template.without_delimiters(message.content) if is_answer else message.content

    def _refuse_control_tokens(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if match := self._end.control.search(self.undelimited(message)):
                raise ContractError(f"the text holds the control token {match.group()!r}")

    def begins(self, ids: Sequence[int]) -> bool:
        """Return True where a row opens with the beginning-of-text token."""
        return bool(ids[0] == self._tokenizer.bos_token_id)


def shorten(answers: list[EncodedAnswer], max_tokens: int, encoder: Encoder) -> tuple[EncodedAnswer, ...]:
    """Cut the prompt's front so that every row fits.

    All answers of one judgment lose the same tokens: they are compared on the same prompt.
    A beginning-of-text token stays where it is.
    """
    too_many = max(len(answer.ids) for answer in answers) - max_tokens
    # One token before the answer is needed to predict the answer's first from.
    too_many = min(too_many, *(answer.answer_start - 1 for answer in answers))
    if too_many <= 0:
        return tuple(answers)
    rows = []
    for answer in answers:
        ids, start = answer.ids, answer.answer_start - too_many
        head = 1 if encoder.begins(ids) and start > 1 else 0
        cut = (head, head + too_many)
        left = ids.without(*cut) if isinstance(ids, Stored) else ids[: cut[0]] + ids[cut[1] :]
        rows.append(answer._replace(ids=left, answer_start=start))
    return tuple(rows)


# ── Token ids of a snapshot's texts on disk: memory-mapped, never held as Python numbers ──
#
# CACHE/tokens-KEY/   KEY follows from the snapshot's digest and from the tokenizer with its chat template
#         header.json     how many of what, and the digests of the files beside it
#         index.npy       one row per text: its digest, where its tokens lie, where the answer begins,
#                         how many of its tokens are masked
#         tokens.bin      int32, one text after the other; where places were wanted, their pairs follow
#
# A text is found by the digest of its chat, its answer and what becomes of its thinking, so another setting
# (context passages, other texts that are wanted) finds what is the same and adds what is new. The folder
# may be deleted at any time; a damaged file is written again.


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

Encode = Callable[..., EncodedAnswer]


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
    ) -> EncodedAnswer:
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

    def _append(self, answered: EncodedAnswer) -> tuple[int, int, int, int, int]:
        flat = [number for pair in answered.offsets for number in pair]
        start = self._spooled.append([*answered.ids, *flat])
        return start, len(answered.ids), answered.answer_start, len(flat), answered.masked

    @staticmethod
    def _answered(
        read: Callable[[int, int], Numbers], start: int, tokens: int, first: int, places: int, masked: int
    ) -> EncodedAnswer:
        middle = start + tokens
        offsets = Stored(read, middle, middle + places, pairs=True) if places else ()
        return EncodedAnswer(Stored(read, start, middle, pairs=False), first, offsets, masked)

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
