"""Rewards that are computed from texts alone, as settings name them. Imports no torch.

See `from_settings` for the table of kinds and options.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal, Self, get_type_hints

import regex

from annotation.record.base import require, require_type
from training.contract import ContractError
from training.contract.methods.policy import RewardPart
from training.rlhf.rewards.protocol import (
    Chat,
    NoReferenceError,
    Reference,
    Reward,
    Score,
    score_each,
    text_reference,
    text_references,
)
from training.rlhf.rewards.sandbox import Limits, run_program

# ── Rules: exact match, the think/answer format, patterns, lines and length ──

_THINK_ANSWER = re.compile(r"\s*<think>(?P<think>.*?)</think>\s*<answer>(?P<answer>.*?)</answer>\s*", re.S)
_TAGS = re.compile(r"</?(?:think|answer)>")


def tagged_answer(completion: str) -> str | None:
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
    """Compare what stands in `<answer>` (see `tagged_answer`); a completion without it gets 0."""

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        return score_each(self._score, completions, references)

    def _score(self, completion: str, reference: Reference) -> float:
        right = {self._normal(text) for text in text_references(reference)}
        answer = tagged_answer(completion) if self.in_answer_tags else completion
        return float(answer is not None and self._normal(answer) in right)

    def _normal(self, text: str) -> str:
        text = text.strip() if self.strip else text
        return text.casefold() if self.ignore_case else text


@dataclass(frozen=True)
class ThinkAnswerFormat:
    """1 for a completion in the think/answer format (see `tagged_answer`), else 0. Needs no reference."""

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        return [Score(float(tagged_answer(completion) is not None)) for completion in completions]


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


# ── Classical metrics of text against references: BLEU, chrF and ROUGE, each from 0 to 1 ──
#
# The reference of a prompt is one text or a list of several.

BleuTokenizer = Literal["13a", "intl", "zh", "char", "none"]
"""Those of sacreBLEU's that need no further package or download."""
RougeType = Literal["rouge1", "rouge2", "rougeL", "rougeLsum"]


@dataclass(frozen=True, kw_only=True)
class Bleu:
    """BLEU of single sentences as sacreBLEU computes it, divided by 100.

    Orders longer than the completion are left out (effective order) and counts smoothed
    (exponential): without both a short answer would be 0. Papineni et al. 2002; Post 2018.
    """

    tokenize: BleuTokenizer = "13a"
    """sacreBLEU's tokenizer; "zh" or "char" where words have no spaces."""

    @cached_property
    def _metric(self) -> Any:
        from sacrebleu.metrics.bleu import BLEU

        return BLEU(tokenize=self.tokenize, effective_order=True)

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        return score_each(self._score, completions, references)

    def _score(self, completion: str, reference: Reference) -> float:
        return float(self._metric.sentence_score(completion, text_references(reference)).score) / 100


@dataclass(frozen=True, kw_only=True)
class Chrf:
    """chrF: F-score over character n-grams, divided by 100. Popović 2015."""

    word_order: int = 0
    """2 also counts words and their pairs: chrF++ (Popović 2017)."""

    @cached_property
    def _metric(self) -> Any:
        from sacrebleu.metrics.chrf import CHRF

        return CHRF(word_order=self.word_order)

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        return score_each(self._score, completions, references)

    def _score(self, completion: str, reference: Reference) -> float:
        return float(self._metric.sentence_score(completion, text_references(reference)).score) / 100


@dataclass(frozen=True, kw_only=True)
class Rouge:
    """ROUGE's F-score against the reference that fits best. Lin 2004.

    The tokenizer knows Latin letters and digits alone, as the original's does: a text in
    another script scores 0 against itself, so a reference without a token cannot be scored.
    """

    kind: RougeType = "rougeL"
    stem: bool = True
    """Porter's stemmer, for English."""

    @cached_property
    def _scorer(self) -> Any:
        from rouge_score.rouge_scorer import RougeScorer

        return RougeScorer([self.kind], use_stemmer=self.stem)

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        return score_each(self._score, completions, references)

    def _score(self, completion: str, reference: Reference) -> float:
        texts = text_references(reference)
        if not any(character.isascii() and character.isalnum() for text in texts for character in text):
            raise NoReferenceError("ROUGE knows Latin letters and digits alone, and the reference has none")
        return float(self._scorer.score_multi(texts, completion)[self.kind].fmeasure)


# ── Reward for mathematics: the completion's result equals the reference as mathematics, not as text ──
#
# `math-verify` reads both (LaTeX, `\boxed{}`, plain expressions, sets, intervals) and compares them with
# SymPy. That can take for ever, or all memory, on what a model writes (`9^{9^{9^{9}}}`), and its own time
# limit is a signal, which works in the main thread alone and stops no long computation in C. So it runs in
# a process of its own, which is killed and replaced when it overruns.

_WORKER = Path(__file__).with_name("mathematics_worker.py")
_START_SECONDS = 120.0
"""For the import of SymPy on a busy machine."""


class Mathematics:
    """1 where the result equals the reference, 0 where it does not or there is none.

    The completion's result is the last that it states, one in `\\boxed{}` before others. A
    reference that cannot be read, and a comparison that overruns its time, cannot be scored.
    Close it after use: it keeps a process.
    """

    def __init__(
        self, *, in_answer_tags: bool = False, seconds: float = 5.0, memory_bytes: int = 2 * 1024**3
    ) -> None:
        """`in_answer_tags`: read only what stands in `<answer>` (see `rules.answer_of`), else 0.

        `seconds` and `memory_bytes` bound the comparison of one completion.
        """
        if seconds <= 0:
            raise ValueError(f"seconds {seconds} must be positive")
        self._in_answer_tags = in_answer_tags
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self._process: subprocess.Popen[bytes] | None = None
        # One conversation with the process at a time.
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process; a later call starts another."""
        with self._lock:
            self._stop()

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        return [self._score(c, r) for c, r in zip(completions, references, strict=True)]

    def _score(self, completion: str, reference: Reference) -> Score:
        try:
            expected = str(reference) if type(reference) in (int, float) else text_reference(reference)
        except NoReferenceError as error:
            return Score.cannot(str(error))
        answer = tagged_answer(completion) if self._in_answer_tags else completion
        if answer is None:
            return Score(0.0)
        question = {"reference": expected, "answer": answer, "bare": self._in_answer_tags}
        try:
            with self._lock:
                reply = json.loads(self._ask(json.dumps(question)))
        except TimeoutError:
            return Score.cannot(f"the comparison took more than {self._seconds} s")
        except EOFError:
            return Score.cannot("the comparison took too much memory")
        return Score.cannot(reply["reason"]) if reply["reason"] else Score(float(reply["equal"]))

    def _ask(self, question: str) -> bytes:
        process = self._started()
        try:
            os.write(_descriptor(process.stdin), question.encode() + b"\n")
            return _line(process, self._seconds)
        except (TimeoutError, EOFError, BrokenPipeError) as error:
            self._stop()
            raise error if isinstance(error, TimeoutError) else EOFError from None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._process = subprocess.Popen(
            # -P: the worker's neighbours must not stand in for modules of the same name.
            [sys.executable, "-P", str(_WORKER), str(self._memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        _line(self._process, _START_SECONDS)
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _descriptor(pipe: IO[bytes] | None) -> int:
    if pipe is None:
        raise EOFError
    return pipe.fileno()


def _line(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """Return one line from the process. Raises `TimeoutError`, or `EOFError` where it has ended."""
    deadline = time.monotonic() + seconds
    read = b""
    with selectors.DefaultSelector() as ready:
        ready.register(_descriptor(process.stdout), selectors.EVENT_READ)
        while not read.endswith(b"\n"):
            if not ready.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            part = os.read(_descriptor(process.stdout), 65536)
            if not part:
                raise EOFError
            read += part
    return read


# ── Reward for programs: the fraction of its unit tests that a completion's Python code passes ──

_FENCED = re.compile(
    r"^[ \t]*(?P<fence>`{3,}|~{3,})[^\n]*\n(?P<code>.*?)^[ \t]*(?P=fence)[ \t]*$", re.S | re.M
)


def last_code_block(completion: str) -> str:
    """Return the last fenced block of code, or the whole completion where it has none."""
    blocks = [match["code"] for match in _FENCED.finditer(completion)]
    return blocks[-1] if blocks else completion


@dataclass(frozen=True, slots=True)
class UnitTest:
    """One test of a program: what it prints for an input, or source that raises unless all is well."""

    source: str = ""
    stdin: str = ""
    expected: str | None = None
    """Output that it must print, white space at line ends and around the whole aside; None: run `source`."""


def read_unit_tests(reference: Reference) -> list[UnitTest]:
    """Return the tests that a reference holds, at least one. Raises `NoReferenceError`.

    A list, or JSON text of one: each entry source with assertions, or an object with `input`
    and `output`. Any other text is the source of one test.
    """
    if isinstance(reference, str):
        try:
            reference = json.loads(reference)
        except ValueError:
            reference = [reference]
    entries = reference if isinstance(reference, list) else [reference]
    tests = [_unit_test(entry) for entry in entries]
    if not tests:
        raise NoReferenceError("the prompt has no unit tests")
    return tests


def _unit_test(entry: Any) -> UnitTest:
    if isinstance(entry, str) and entry.strip():
        return UnitTest(source=entry)
    if isinstance(entry, Mapping) and isinstance(entry.get("output"), str):
        stdin = entry.get("input", "")
        if isinstance(stdin, str):
            return UnitTest(stdin=stdin, expected=entry["output"])
    raise NoReferenceError("a unit test is neither source nor an object with the texts input and output")


@dataclass(frozen=True, kw_only=True)
class UnitTests:
    """The fraction of the reference's tests (see `read_unit_tests`) that the completion's code passes.

    Every test runs in a sandboxed process of its own (see `sandbox`): one that hangs or exhausts
    memory fails alone. Raises `SandboxError` on a machine that cannot hold a program in, unless
    `trust` is set.
    """

    limits: Limits = field(default_factory=Limits)
    """For each test."""
    trust: bool = False
    """Run programs even where nothing holds them in."""
    workers: int | None = None
    """Tests at a time; None is one per core."""

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        with ThreadPoolExecutor(self.workers or os.cpu_count()) as pool:
            planned = [self._planned(c, r) for c, r in zip(completions, references, strict=True)]
            runs = [job for jobs in planned if isinstance(jobs, list) for job in jobs]
            passed = iter(list(pool.map(self._passes, *zip(*runs, strict=True)))) if runs else iter(())
            return [
                jobs if isinstance(jobs, Score) else Score(sum(next(passed) for _ in jobs) / len(jobs))
                for jobs in planned
            ]

    def _planned(self, completion: str, reference: Reference) -> list[tuple[str, UnitTest]] | Score:
        try:
            return [(last_code_block(completion), test) for test in read_unit_tests(reference)]
        except NoReferenceError as error:
            return Score.cannot(str(error))

    def _passes(self, program: str, test: UnitTest) -> bool:
        if test.expected is None:
            outcome = run_program(program, test=test.source, limits=self.limits, trust=self.trust)
            return outcome.end == "passed"
        outcome = run_program(program, stdin=test.stdin, limits=self.limits, trust=self.trust)
        return outcome.end == "passed" and _trimmed(outcome.output) == _trimmed(test.expected)


def _trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


_PLAIN: dict[str, type[Any]] = {
    "exact_match": ExactMatch,
    "think_answer": ThinkAnswerFormat,
    "pattern": Pattern,
    "line_count": LineCount,
    "length": Length,
    "mathematics": Mathematics,
    "bleu": Bleu,
    "rouge": Rouge,
    "chrf": Chrf,
}
"""Kinds whose options are the reward's own arguments."""


KINDS_OF_TEXTS = (*_PLAIN, "unit_tests")
"""Every kind that this module builds."""


def reward_of_texts(part: RewardPart) -> Reward:
    """The reward that `part`, of one of `KINDS_OF_TEXTS`, names. Raises `ContractError` naming the part."""
    where = f"reward {part.name!r}, options"
    if part.kind == "unit_tests":
        return _unit_tests(part.options, where)
    reward: Reward = construct(_PLAIN[part.kind], part.options, where)
    return reward


def construct(
    cls: type[Any],
    options: Mapping[str, Any],
    where: str,
    *,
    hidden: Collection[str] = (),
    **arguments: Any,
) -> Any:
    """`cls(**options, **arguments)`, once the options are arguments that it has, and of their types.

    hidden: arguments that no option may set.
    """
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(cls).parameters.items()
        if name not in hidden and name not in arguments
    }
    if odd := sorted(set(options) - set(parameters)):
        known = ", ".join(sorted(parameters)) or "none"
        raise ContractError(f"{where}: unknown option {', '.join(map(repr, odd))}; known are {known}")
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and name not in options
    ]
    require(not missing, where, f"option {', '.join(map(repr, missing))} is missing")
    hints = get_type_hints(cls if is_dataclass(cls) else cls.__init__)
    for name, value in options.items():
        require_type(value, hints[name], f"{where}: option {name!r}")
    try:
        return cls(**options, **arguments)
    except ValueError as error:
        raise ContractError(f"{where}: {error}") from None


def _unit_tests(options: Mapping[str, Any], where: str) -> Reward:
    for name in ("trust", "write_files"):
        require(
            name not in options,
            where,
            f"{name!r} is not for a run to set: a program that nobody has read would leave its sandbox",
        )
    workers = {name: value for name, value in options.items() if name == "workers"}
    limits = {name: value for name, value in options.items() if name != "workers"}
    made: Reward = construct(
        UnitTests,
        workers,
        where,
        hidden=("trust",),
        limits=construct(Limits, limits, where, hidden=("write_files",)),
    )
    for name, value in options.items():
        require(value is None or value > 0, where, f"option {name!r} must be positive")
    return made
