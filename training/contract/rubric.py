"""Rubrics: weighted criteria, the question that a judge scores by them, and the reading of its reply.

A value v on a scale from a to b counts (v − a) / (b − a). The score of a response is the weighted mean of its
criteria, Σ w·c / Σ w, so it lies in [0, 1]. Web application and trainer ask and read alike.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from annotation.record.base import Count, Positive, Text, record, require
from annotation.record.judgment import Scale

STEPS: Mapping[Scale, tuple[int, int]] = {"five": (1, 5), "seven": (1, 7), "thumbs": (0, 1)}
"""The lowest and the highest value of each scale; thumbs is no or yes."""
MOST_CRITERIA = 20
LONGEST_REPLY = 50_000
"""Characters; a longer reply is refused."""
LONGEST_REASON = 1000
_PLAIN_WORDS = {"no": 0, "yes": 1}
_LINE = re.compile(
    r"[\s>*\-•`]*(?P<letter>[A-Z])\s?\.?(?P<number>\d{1,2})[*`]*\s*[:=]\s*[*`]*"
    r"(?P<value>\d{1,2}|yes|no)(?:\s?/\s?\d{1,2})?[*`]*(?:\s*[|–—:;,-]\s*|\s+|\s*$)(?P<reason>.*)",
    re.IGNORECASE,
)
_NONE = re.compile(r"[\s*_`]*Scores:\s*none[\s*_`.]*", re.IGNORECASE)

FORM = """\
For every answer and every criterion write one line of exactly this form: the letter of the answer and \
the number of the criterion, a colon, the score, a bar, and the reason in one short sentence. Write nothing \
else. For example:

{example}

If you cannot judge, write the one line: Scores: none"""


class RubricReplyError(ValueError):
    """A reply without one score for each answer and criterion. The message says what is wrong with it."""


@record
class RubricCriterion:
    """One criterion of a rubric."""

    key: Text
    """Its name in ratings and exports."""
    name: Text
    """Its name for people."""
    text: str = ""
    """The question that a response is scored by."""
    levels: str = ""
    """The meaning of the steps of the scale."""
    scale: Scale = "five"
    """The steps: five (1 to 5), seven (1 to 7), or thumbs (no or yes)."""
    weight: Positive = 1.0
    """Its share of the sum, relative to the others."""

    def normalised(self, value: float) -> float:
        """Return a value of the scale as a number from 0 to 1."""
        low, high = STEPS[self.scale]
        return (value - low) / (high - low)


@record
class Rubric:
    """One version of a rubric."""

    name: Text
    """Its name in the project."""
    version: Count = 1
    """The number of the version."""
    criteria: tuple[RubricCriterion, ...] = ()
    """The criteria, at least one."""

    def __post_init__(self) -> None:
        require(0 < len(self.criteria) <= MOST_CRITERIA, "criteria", f"name 1 to {MOST_CRITERIA} criteria")
        keys = {criterion.key for criterion in self.criteria}
        require(len(keys) == len(self.criteria), "criteria", "keys must differ")

    def score(self, values: Mapping[str, float]) -> float:
        """Return the weighted mean, 0 to 1, of values by criterion key. Every criterion must have one."""
        weighted = [
            criterion.weight * criterion.normalised(values[criterion.key]) for criterion in self.criteria
        ]
        return math.fsum(weighted) / math.fsum(criterion.weight for criterion in self.criteria)


@dataclass(frozen=True, slots=True)
class CriterionScore:
    """A judge's score of one answer by one criterion."""

    value: int
    reason: str


def rubric_in_words(rubric: Rubric) -> str:
    """Return the criteria as numbered paragraphs for a judge."""
    return "\n\n".join(
        _in_words(number, criterion) for number, criterion in enumerate(rubric.criteria, start=1)
    )


def rubric_form(rubric: Rubric, answers: int) -> str:
    """Return the sentences that say in which form a judge replies, with an example for `answers` answers."""
    lines = [
        f"{letter}{number}: {_example(criterion, place + number)} | Because …"
        for place, letter in enumerate(string.ascii_uppercase[:answers])
        for number, criterion in enumerate(rubric.criteria, start=1)
    ]
    return FORM.replace("{example}", "\n".join(lines))


def read_scores(text: str, rubric: Rubric, answers: int) -> list[dict[str, CriterionScore]] | None:
    """Return each answer's scores by criterion key; None for "none".

    Lines of another form are ignored: a model may think aloud. Raises `RubricReplyError` where a score
    is missing, outside its scale, or given twice with different values.
    """
    if len(text) > LONGEST_REPLY:
        raise RubricReplyError(f"The reply has more than {LONGEST_REPLY} characters.")
    lines = text.splitlines()
    scores: list[dict[str, CriterionScore]] = [{} for _ in range(answers)]
    for line in lines:
        # Bounded, so that no line takes long to match.
        if match := _LINE.fullmatch(line[: 4 * LONGEST_REASON]):
            _place(match, rubric, scores)
    if not any(scores) and any(_NONE.fullmatch(line[:100]) for line in lines):
        return None
    for letter, scored in zip(string.ascii_uppercase, scores, strict=False):
        for number, criterion in enumerate(rubric.criteria, start=1):
            if criterion.key not in scored:
                raise RubricReplyError(f"The score {letter}{number} is missing.")
    return scores


def _in_words(number: int, criterion: RubricCriterion) -> str:
    low, high = STEPS[criterion.scale]
    scale = "yes or no" if criterion.scale == "thumbs" else f"{low} to {high}, {high} is best"
    lines = [f"{number}. {criterion.name} ({scale})", criterion.text, criterion.levels]
    return "\n".join(filter(None, lines))


def _example(criterion: RubricCriterion, place: int) -> str:
    """Return a score that differs from line to line, so that the example suggests none."""
    low, high = STEPS[criterion.scale]
    value = low + place % (high - low + 1)
    return ("no", "yes")[value] if criterion.scale == "thumbs" else str(value)


def _place(match: re.Match[str], rubric: Rubric, scores: Sequence[dict[str, CriterionScore]]) -> None:
    """Put one line's score into its place. Raises `RubricReplyError` for what the rubric does not have."""
    letter, number = match["letter"].upper(), int(match["number"])
    where = string.ascii_uppercase.index(letter)
    if where >= len(scores) or not 1 <= number <= len(rubric.criteria):
        raise RubricReplyError(f"There is no answer and criterion {letter}{number}.")
    criterion = rubric.criteria[number - 1]
    value = _value(match["value"], criterion, f"{letter}{number}")
    earlier = scores[where].get(criterion.key)
    if earlier is not None and earlier.value != value:
        raise RubricReplyError(f"The score {letter}{number} is there twice.")
    reason = match["reason"].strip().strip("|").strip()[:LONGEST_REASON]
    scores[where][criterion.key] = earlier or CriterionScore(value, reason)


def _value(text: str, criterion: RubricCriterion, name: str) -> int:
    low, high = STEPS[criterion.scale]
    word = text.lower()
    if word in _PLAIN_WORDS and criterion.scale == "thumbs":
        return _PLAIN_WORDS[word]
    if not word.isdecimal() or not low <= int(word) <= high:
        raise RubricReplyError(f"The score {name} is {text}; its scale is {low} to {high}.")
    return int(word)
