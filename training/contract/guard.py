"""Questions of a run's guard and people's verdicts on them: `guard/` in the run's folder.

The trainer writes `question-N.json` once, with responses of two states of its policy; the web application has
people compare some of them and writes `verdict-N.json`. Neither file changes once it is there.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from annotation.record.base import Count, CountOrZero, Figure, decode, record
from training.contract.files import canonical_json, read_json, write_atomically

GUARD_FOLDER = "guard"
PAIRS_AT_ONCE = 8
"""Pairs that people are asked at once; with fewer left a question could not be answered."""
MOST_PAIRS = 40
"""Pairs of a run at most, all questions together."""
_QUESTION = re.compile(r"question-(\d+)\.json")

VerdictOutcome = Literal["fine", "worse", "undecided"]
SignalName = Literal["kl", "reward", "length", "heads"]


@record
class GuardSignal:
    """A signal that raised a question."""

    name: SignalName
    """kl: nats per response from the reference; reward: rise within five steps, in deviations of the first
    rewards; length: over that of the first responses; heads: an ensemble's deviation over its first one."""
    value: Figure
    bound: Figure
    """The value that it had to reach."""


class SignalHeight(NamedTuple):
    """The height that a signal has come to. People are asked when it comes to a new one."""

    name: SignalName
    height: int
    value: float
    bound: float
    """The value of that height."""

    @property
    def signal(self) -> GuardSignal:
        """Return the signal as a question keeps it."""
        return GuardSignal(name=self.name, value=self.value, bound=self.bound)


def height_of_doublings(name: SignalName, value: float, first: float) -> SignalHeight:
    """Return the height of what asks at `first` and again with each doubling."""
    height = 1 + math.floor(math.log2(value / first)) if value >= first else 0
    return SignalHeight(name, height, value, first * 2 ** max(height - 1, 0))


def height_of_length(ratio: float, drift: float) -> SignalHeight:
    """Return the height of a length over the first one, positive, that asks with each change by `drift`."""
    grown = 1 + drift
    height = math.floor(abs(math.log(ratio)) / math.log(grown))
    return SignalHeight("length", height, ratio, grown**height if ratio > 1 else grown**-height)


@record
class SampledText:
    """A response that the trainer sampled."""

    text: str
    seed: int
    finish_reason: str
    tokens: int


@record
class GuardedPair:
    """Responses to one training prompt, which differ."""

    prompt: str
    """Id of the prompt in the snapshot."""
    then: SampledText
    now: SampledText


@record
class GuardQuestion:
    """A question of a run: is its policy worse than some steps ago?"""

    number: Count
    """Counted from 1."""
    step: CountOrZero
    """Optimiser steps taken by the policy of now."""
    then_step: CountOrZero
    """Those of the earlier state, which is kept: the run's result where now is worse."""
    signals: tuple[GuardSignal, ...]
    sampling: Mapping[str, Any]
    """Sampling parameters of all responses."""
    pairs: tuple[GuardedPair, ...]
    """As many as people may still be asked, in random order; none where the run's pairs are spent, so that it
    ends without a question."""


@record
class GuardVerdict:
    """People's verdict on a question."""

    outcome: VerdictOutcome
    asked: CountOrZero
    """Pairs that people were asked in the run so far."""


def write_question(run_folder: Path, question: GuardQuestion) -> None:
    """Write a question; it must not be there."""
    _write(run_folder, f"question-{question.number}.json", question)


def read_question(run_folder: Path, number: int) -> GuardQuestion | None:
    """Return a question; None before it is asked."""
    path = run_folder / GUARD_FOLDER / f"question-{number}.json"
    return decode(GuardQuestion, read_json(path), str(path)) if path.is_file() else None


def read_questions(run_folder: Path, *, after: int = 0) -> list[GuardQuestion]:
    """Return the questions of a run with a higher number than `after`, in their order."""
    folder = run_folder / GUARD_FOLDER
    if not folder.is_dir():
        return []
    numbers = [int(match[1]) for path in folder.iterdir() if (match := _QUESTION.fullmatch(path.name))]
    questions = [read_question(run_folder, number) for number in sorted(numbers) if number > after]
    return [question for question in questions if question is not None]


def write_verdict(run_folder: Path, number: int, verdict: GuardVerdict) -> None:
    """Write the verdict on a question."""
    _write(run_folder, f"verdict-{number}.json", verdict)


def read_verdict(run_folder: Path, number: int) -> GuardVerdict | None:
    """Return the verdict on a question; None while there is none."""
    path = run_folder / GUARD_FOLDER / f"verdict-{number}.json"
    return decode(GuardVerdict, read_json(path), str(path)) if path.is_file() else None


def _write(run_folder: Path, name: str, content: GuardQuestion | GuardVerdict) -> None:
    folder = run_folder / GUARD_FOLDER
    folder.mkdir(exist_ok=True)
    write_atomically(folder / name, canonical_json(dataclasses.asdict(content)) + "\n")
