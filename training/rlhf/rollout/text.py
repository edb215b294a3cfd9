"""From token ids to text while it is being written: whole characters only, nothing past a stop string."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

from training.rlhf.model.templates import hidden_ids

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """The text of one sample, growing by tokens.

    Holds back what may still change: the bytes of an unfinished character, and a tail that may
    turn out to begin a stop string. What `push` and `finish` return, put together, is `text`.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        # Without its delimiters the thinking of gpt-oss could not be distinguished from its answer.
        self._hidden = hidden_ids(tokenizer)
        self._ids: list[int] = []
        self._starts: list[int] = []
        self._length = 0
        self._given = 0
        self._searched = 0
        self.text = ""
        """All that was given out so far; after `finish`, the sample's text."""
        self.stopped = False
        """True if a stop string was met; the text ends before it."""
        self.visible_tokens = 0
        """Number of tokens, from the first, that have a part in `text`."""

    def push(self, token: int) -> str:
        """Take one token; return the text that is now certain. Sets `stopped`."""
        self._ids.append(token)
        self._starts.append(self._length)
        text = self._decode().rstrip(_REPLACEMENT)
        self._length = len(text)
        return self._advance(text)

    def extend(self, tokens: Iterable[int]) -> None:
        """Take tokens without looking for text or stop strings; `finish` gives the text."""
        self._ids.extend(tokens)

    def finish(self, *, complete: bool) -> str:
        """Give what was held back.

        complete: the model ended the text, so bytes that are no character stay, as replacement
        characters; else a character cut off in the middle is left out.
        """
        if self.stopped:
            return ""
        text = self._decode()
        if not complete:
            text = text.rstrip(_REPLACEMENT)
        delta = self._advance(text, last=True)
        if not self.stopped:
            self.visible_tokens = len(self._ids)
        return delta

    def _decode(self) -> str:
        # The whole sequence each time: what a decoder makes of a token depends on those before
        # it, and 500 tokens take 0.1 ms.
        hidden = self._hidden
        text: str = self._tokenizer.decode(
            self._ids if hidden is None else [id for id in self._ids if id not in hidden],
            skip_special_tokens=hidden is None,
            clean_up_tokenization_spaces=False,
        )
        return text

    def _advance(self, text: str, *, last: bool = False) -> str:
        cut = self._find_stop(text)
        if cut is not None:
            self.stopped = True
            certain = cut
        else:
            certain = len(text) if last else len(text) - self._held_back(text)
        delta = text[self._given : certain]
        self._given = max(self._given, certain)
        self.text += delta
        self.visible_tokens = bisect_left(self._starts, self._given)
        return delta

    def _find_stop(self, text: str) -> int | None:
        start = max(0, self._searched - max(map(len, self._stop), default=0))
        self._searched = len(text)
        positions = [position for stop in self._stop if (position := text.find(stop, start)) >= 0]
        return min(positions, default=None)

    def _held_back(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = max(map(len, self._stop), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0
