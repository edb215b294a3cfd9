"""Judgments as plain data, as the statistics take them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations
from typing import TypeVar

from annotation.choices import Purpose

# Selections: the part of a project that a report is about.


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """A round, a category of marks, one annotator or two; None selects everything."""

    round_number: int | None = None
    category_id: int | None = None
    annotator_id: int | None = None
    other_id: int | None = None

    @property
    def annotator_ids(self) -> tuple[int, ...]:
        """The annotators that are chosen: none, one or two."""
        chosen = (self.annotator_id, self.other_id)
        return tuple(dict.fromkeys(pk for pk in chosen if pk is not None))

    @property
    def rounds(self) -> tuple[int, ...] | None:
        """The rounds to read; None for all."""
        return None if self.round_number is None else (self.round_number,)

    def is_of(self, annotator_id: int) -> bool:
        """Return True where this annotator's work is part of it."""
        return not self.annotator_ids or annotator_id in self.annotator_ids

    @property
    def key(self) -> str:
        """The selection as part of a cache key."""
        return f"{self.round_number}:{self.category_id}:{self.annotator_id}:{self.other_id}"


K = TypeVar("K", int, str)
"""A completion's id, or its name in a record."""


def outcome_between(ranks: Mapping[int, float], left: int, right: int) -> int | None:
    """Return 1 where `left` is better, −1 where `right` is, 0 for a tie; None where ranks say nothing.

    left, right: of the judged completions. One without a rank is below all that have one; two say nothing.
    """
    first, second = ranks.get(left), ranks.get(right)
    if first is None or second is None:
        return None if first is second else 1 if second is None else -1
    return (second > first) - (second < first)


def decides_a_pair(ranks: Mapping[int, int], size: int) -> bool:
    """Return True where ranks of some of `size` completions put one above another."""
    return len(set(ranks.values())) > 1 or 0 < len(ranks) < size


def unordered_among(ranks: Mapping[K, int], completions: Iterable[K]) -> list[K]:
    """Return the completions that a partial ranking leaves without an order; none where nothing is ranked."""
    return [pk for pk in completions if pk not in ranks] if ranks else []


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """One current judgment: who said what about which completions, shown in which order."""

    pk: int
    comparison: int
    prompt: int
    round_number: int
    purpose: str
    assignment: int
    retest_of: int | None
    annotator: int
    verdict: str
    strength: int | None
    seconds: int | None
    at: datetime
    shown: tuple[int, ...]
    """Completion ids in the order in which they were displayed."""
    ranks: dict[int, int]
    """Of a partial ranking, those of the best completions alone."""
    undecided: frozenset[frozenset[int]]
    """Pairs that an imported set calls equal although its other pairs give them different ranks."""

    @property
    def is_first_work(self) -> bool:
        """Return True for work that counts for agreement: real work, and not its repetition."""
        return self.purpose == Purpose.WORK and self.retest_of is None

    @property
    def completions(self) -> tuple[int, ...]:
        """The completions in an order that everyone shares: by age."""
        return tuple(sorted(self.shown))

    def outcome(self, left: int, right: int) -> int | None:
        """1 where `left` is better, −1 where `right` is, 0 where neither; None where nothing was said."""
        if self.undecided and frozenset((left, right)) in self.undecided:
            return 0
        return outcome_between(self.ranks, left, right)

    def leaves_open(self, left: int, right: int) -> bool:
        """Return True where it is a ranking that gives these two no order."""
        return bool(self.ranks) and self.outcome(left, right) is None

    def outcomes(self) -> list[tuple[int, int, int]]:
        """Every pair of its completions with the outcome: (older, younger, outcome)."""
        return [
            (left, right, outcome)
            for left, right in combinations(self.completions, 2)
            if (outcome := self.outcome(left, right)) is not None
        ]


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A marked stretch, half open, with its category."""

    start: int
    end: int
    category: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Rated:
    """One completion's rating on one criterion."""

    judgment: int
    completion: int
    criterion: int
    value: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldAnswered:
    """One person's first answer to an item whose answer is known."""

    comparison: int
    annotator: int
    right: bool
