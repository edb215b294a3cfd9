"""What people said of answers besides ranking them, and what of it a method wants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from training.contract import Scale, SnapshotRow


@dataclass(frozen=True, slots=True)
class Rating:
    """One answer's rating on one criterion."""

    answer: int
    criterion: str
    scale: Scale
    value: int


@dataclass(frozen=True, slots=True)
class Flag:
    """A marked stretch [start, end) of one answer's text, in code points."""

    answer: int
    category: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Missing:
    """One thing that an answer should have said."""

    answer: int
    category: str


@dataclass(frozen=True, slots=True)
class Labels:
    """What people said of an example's answers besides ranking them."""

    ratings: tuple[Rating, ...] = ()
    flags: tuple[Flag, ...] = ()
    missing: tuple[Missing, ...] = ()
    read_for_flags: tuple[int, ...] = ()
    """Answers that were read for span flags: one of them without a flag is faultless."""
    read_for_missing: tuple[int, ...] = ()
    """Answers that were read for what they leave out: one of them without a flag lacks nothing."""
    texts: tuple[str, ...] = ()
    """The answers' texts; only where flags are wanted, which are places in them."""
    verdict: str = ""
    """What was said of all answers at once: both_good, both_bad; else empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What a method learns from."""

    ranks: Literal["decided", "tied", "none"] = "decided"
    """Rankings: those that decide a pair; those in which all are tied as well; or none."""
    criteria: frozenset[str] | None = frozenset()
    """Criteria whose ratings count; None is all of them."""
    verdicts: bool = False
    """The verdicts 'both good' and 'both bad', said of each answer."""
    categories: frozenset[str] | None = frozenset()
    """Categories whose span flags count; None is all of them."""
    missing: frozenset[str] | None = frozenset()
    """Categories whose missing-information flags count; None is all of them. Where any does, a corrected
    answer, which lacks nothing, makes an example with its original if that lacked something."""
    corrections: bool = False
    """Of each correction in the training split, that it is better than its original."""
    written: frozenset[str] = frozenset()
    """Texts to be imitated: 'demonstrations', 'corrections', 'preferred'."""
    nothing: str = "has no training pair"
    """What the snapshot lacks when no example is left."""
    remedy: str = "Judge more comparisons in which one answer is better"
    """What to do then."""


class LabelsOf:
    """What a row says of its answers besides ranking them, as far as it is wanted."""

    def __init__(self, row: SnapshotRow, wanted: Wanted, *, again: bool) -> None:
        self._row = row
        self._ratings = [item for item in row.ratings if among(item.criterion, wanted.criteria)]
        self._flags = [item for item in row.spans if among(item.category, wanted.categories)]
        self._missing = [item for item in row.missing if among(item.category, wanted.missing)]
        verdict = row.verdict if row.review is None else "" if again else row.review.verdict
        self._verdict = verdict if wanted.verdicts and verdict in ("both_good", "both_bad") else ""
        self._places = wanted.categories is None or bool(wanted.categories)
        said = {rating.completion for rating in self._ratings}
        said |= {flag.completion for flag in self._flags} | {gap.completion for gap in self._missing}
        lacks = wanted.missing is None or bool(wanted.missing)
        self._read_for_flags = _read(row, row.read_for_spans) if self._places else set()
        self._read_for_missing = _read(row, row.read_for_missing) if lacks else set()
        self.completions = said | self._read_for_flags | self._read_for_missing
        if self._verdict:
            self.completions |= {completion.id for completion in row.completions}

    def of(self, places: Mapping[str, int]) -> Labels:
        """The labels of the answers that are left, by their places."""
        texts = {completion.id: completion.text for completion in self._row.completions}
        return Labels(
            ratings=tuple(
                Rating(places[item.completion], item.criterion, item.scale, item.value)
                for item in self._ratings
                if item.completion in places
            ),
            flags=tuple(
                Flag(places[item.completion], item.category, item.start, item.end)
                for item in self._flags
                if item.completion in places
            ),
            missing=tuple(
                Missing(places[item.completion], item.category)
                for item in self._missing
                if item.completion in places
            ),
            read_for_flags=tuple(sorted(places[name] for name in self._read_for_flags if name in places)),
            read_for_missing=tuple(sorted(places[name] for name in self._read_for_missing if name in places)),
            texts=tuple(texts[name] for name in places) if self._places else (),
            verdict=self._verdict,
        )


def among(name: str, wanted: frozenset[str] | None) -> bool:
    """Whether a criterion or category is wanted; None wants all."""
    return wanted is None or name in wanted


def _read(row: SnapshotRow, said: tuple[str, ...] | None) -> set[str]:
    """Ids of the completions that were read for faults of one kind.

    Older snapshots do not say: there it is those that have a fault of either kind, so that answers which
    were read and found faultless are lost.
    """
    if said is not None:
        return set(said)
    return {span.completion for span in row.spans} | {lack.completion for lack in row.missing}
