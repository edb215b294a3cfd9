"""Rewards that a rule decides: exact match, the think/answer format, patterns, lines and length."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import regex

from training.rlhf.rewards.protocol import Chat, Reference, Score, score_each, text_references

_THINK_ANSWER = re.compile(r"\s*<think>(?P<think>.*?)</think>\s*<answer>(?P<answer>.*?)</answer>\s*", re.S)
_TAGS = re.compile(r"</?(?:think|answer)>")


def answer_of(completion: str) -> str | None:
    """Return the text between the answer tags of a think/answer completion; None for another format.

    The format: `<think>…</think>`, then `<answer>…</answer>`, nothing but white space around
    them, and none of the four tags a second time.
    """
    match = _THINK_ANSWER.fullmatch(completion)
    if match is None or len(_TAGS.findall(completion)) != 4:
        return None
    return match["answer"].strip()


@dataclass(frozen=True, kw_only=True)
class ExactMatch:
    """1 for the reference (one text, or a list of right ones), else 0."""

    strip: bool = True
    """White space at both ends does not count. Turn it off where it is part of the answer."""
    ignore_case: bool = False
    in_answer_tags: bool = False
    """Compare what stands in `<answer>` (see `answer_of`); a completion without it gets 0."""

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        return score_each(self._score, completions, references)

    def _score(self, completion: str, reference: Reference) -> float:
        right = {self._normal(text) for text in text_references(reference)}
        answer = answer_of(completion) if self.in_answer_tags else completion
        return float(answer is not None and self._normal(answer) in right)

    def _normal(self, text: str) -> str:
        text = text.strip() if self.strip else text
        return text.casefold() if self.ignore_case else text


@dataclass(frozen=True)
class ThinkAnswerFormat:
    """1 for a completion in the think/answer format (see `answer_of`), else 0. Needs no reference."""

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        return [Score(float(answer_of(completion) is not None)) for completion in completions]


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """1 where a regular expression is found in the completion, else 0.

    Some patterns take time exponential in the text, and the text is a model's. Matching stops
    after `seconds`, and the completion cannot be scored then. The syntax is that of the `regex`
    package, which is that of `re` and more. A pattern that is none raises `ValueError`.
    """

    pattern: str
    whole: bool = False
    """The whole completion must match, not a part of it."""
    seconds: float = 1.0
    """Time for one completion."""

    def __post_init__(self) -> None:
        if self.seconds <= 0:
            raise ValueError(f"seconds {self.seconds} must be positive")
        try:
            regex.compile(self.pattern)
        except regex.error as error:
            raise ValueError(f"pattern {self.pattern!r} is no regular expression: {error}") from None

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        return [self._score(completion) for completion in completions]

    def _score(self, completion: str) -> Score:
        compiled = regex.compile(self.pattern)
        match = compiled.fullmatch if self.whole else compiled.search
        try:
            # `concurrent` lets other threads run: a slow pattern must not hold up the heartbeat.
            hit = match(completion, concurrent=True, timeout=self.seconds)
        except TimeoutError:
            return Score.cannot(f"the pattern took more than {self.seconds} s")
        return Score(float(hit is not None))


@dataclass(frozen=True, kw_only=True)
class LineCount:
    """Closeness of the number of lines to the wanted number: 1 − |lines − wanted| / wanted, at least 0.

    The number wanted is the reference (a number, or a text of digits) unless `wanted` is given.
    Lines of white space alone do not count.
    """

    wanted: int | None = None

    def __post_init__(self) -> None:
        if self.wanted is not None and self.wanted < 1:
            raise ValueError(f"wanted {self.wanted} must be at least 1")

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        return [self._score(c, r) for c, r in zip(completions, references, strict=True)]

    def _score(self, completion: str, reference: Reference) -> Score:
        expected = self.wanted or _whole_number(reference)
        if expected is None:
            return Score.cannot("the reference is no number of lines")
        lines = sum(bool(line.strip()) for line in completion.splitlines())
        return Score(max(0.0, 1 - abs(lines - expected) / expected))


def _whole_number(reference: Reference) -> int | None:
    """Return a number of at least 1, or a text of digits; None for all else, True included."""
    if isinstance(reference, str) and re.fullmatch(r"\s*[0-9]{1,9}\s*", reference):
        reference = int(reference)
    return reference if type(reference) is int and reference >= 1 else None


@dataclass(frozen=True, kw_only=True)
class Length:
    """1 within the bounds, falling in a straight line to 0 over `slack` units beyond them."""

    least: int = 0
    most: int
    slack: int = 0
    """0: beyond the bounds is 0 at once."""
    unit: str = "words"
    """"words" (by white space) or "characters" (code points)."""

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most or self.slack < 0:
            raise ValueError(
                f"least {self.least} and most {self.most} must be in order, slack {self.slack} ≥ 0"
            )
        if self.unit not in ("words", "characters"):
            raise ValueError(f"unit {self.unit!r} is not known; it is 'words' or 'characters'")

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        return [Score(self._score(completion)) for completion in completions]

    def _score(self, completion: str) -> float:
        length = len(completion.split() if self.unit == "words" else completion)
        beyond = max(self.least - length, length - self.most, 0)
        return max(0.0, 1 - beyond / self.slack) if beyond and self.slack else float(not beyond)
