"""Reward for programs: the fraction of its unit tests that a completion's Python code passes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from training.rlhf.rewards.protocol import Chat, NoReferenceError, Reference, Score
from training.rlhf.rewards.sandbox import Limits, run_program

_FENCED = re.compile(
    r"^[ \t]*(?P<fence>`{3,}|~{3,})[^\n]*\n(?P<code>.*?)^[ \t]*(?P=fence)[ \t]*$", re.S | re.M
)


def code_of(completion: str) -> str:
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


def unit_tests_of(reference: Reference) -> list[UnitTest]:
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
    """The fraction of the reference's tests (see `unit_tests_of`) that the completion's code passes.

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
            return [(code_of(completion), test) for test in unit_tests_of(reference)]
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
