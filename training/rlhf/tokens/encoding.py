"""A chat and its answer as token ids: one rendered text, tokenised once, with the answer marked in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from training.contract import ContractError, Message
from training.contract.chat_template import ChatTemplate, Thinking
from training.rlhf.model.templates import TurnEnd, renderer

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


class Answered(NamedTuple):
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

    def encode(self, messages: Sequence[Message], answer: str, *, offsets: bool = False) -> Answered:
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
            return Answered(ids, first, masked=learned - first)
        within = [
            tuple(min(max(place - start + placed.cut, 0), len(answer)) for place in pair)
            for pair in places[learned:]
        ]
        return Answered(ids, first, tuple((low, high) for low, high in within), learned - first)

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


def shorten(answers: list[Answered], max_tokens: int, encoder: Encoder) -> tuple[Answered, ...]:
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
