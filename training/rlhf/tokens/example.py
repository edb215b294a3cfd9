"""One judgment as a method reads it: tokenised completions with their ranks, weights and labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from annotation.record.judgment import SpanPart, StepLabel, Target
from training.contract.snapshot import SnapshotRow
from training.rlhf.losses import NOT_ORDERED
from training.rlhf.tokens.encoding import EncodedAnswer

# ── Labels of completions besides rankings, and the selection that a method uses ──


@dataclass(frozen=True, slots=True)
class RatingLabel:
    """One answer's rating on one criterion."""

    answer: int
    criterion: str
    scale: str
    """The scale's name; answers for a question, whose value is the answer's place among those of a head."""
    value: int


@dataclass(frozen=True, slots=True)
class AnswerLabel:
    """The answer to an additional question about one completion."""

    answer: int
    question: str
    value: str
    """The key of a choice, or a point of a scale."""


@dataclass(frozen=True, slots=True)
class MissingInformation:
    """One thing that an answer should have said."""

    answer: int
    category: str


@dataclass(frozen=True, slots=True)
class StepWithLabel:
    """One labelled step of an answer."""

    start: int
    end: int
    """[start, end) of the answer's text, in code points."""
    label: StepLabel


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of an example's completions besides their ranking."""

    ratings: tuple[RatingLabel, ...] = ()
    questions: tuple[AnswerLabel, ...] = ()
    """Answers to additional questions."""
    flags: tuple[tuple[int, SpanPart], ...] = ()
    """Spans, each with the place of its answer."""
    missing: tuple[MissingInformation, ...] = ()
    read_for_flags: tuple[int, ...] = ()
    """Answers that were read for span flags: one of them without a flag is faultless."""
    read_for_missing: tuple[int, ...] = ()
    """Answers that were read for what they leave out: one of them without a flag lacks nothing."""
    texts: tuple[str, ...] = ()
    """The answers' texts; only where flags are wanted, which are places in them."""
    steps: tuple[tuple[int, tuple[StepWithLabel, ...]], ...] = ()
    """The labelled steps of each answer that has any, with its place; steps without a label are left out."""
    verdict: str = ""
    """Verdict on all completions: both_good, both_bad; else empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UsedLabels:
    """Labels that a method learns from."""

    ranks: Literal["decided", "tied", "none"] = "decided"
    """Rankings: those that decide a pair; those in which all are tied as well; or none."""
    criteria: frozenset[str] | None = frozenset()
    """Criteria whose ratings count; None is all of them."""
    questions: frozenset[str] = frozenset()
    """Additional questions whose answers on single completions count."""
    covariates: frozenset[str] = frozenset()
    """Questions whose answers are read of completions that teach something else, and teach nothing alone."""
    verdicts: bool = False
    """The verdicts 'both good' and 'both bad', applied to each completion."""
    categories: frozenset[str] | None = frozenset()
    """Categories whose span flags count; None is all of them."""
    steps: bool = False
    """The labels of steps."""
    missing: frozenset[str] | None = frozenset()
    """Categories whose missing-information flags count; None is all of them. Where any does, a corrected
    answer, which lacks nothing, makes an example with its original if that lacked something."""
    corrections: bool = False
    """Of each correction in the training split, that it is better than its original."""
    changes_alone: bool = False
    """Learn that from the tokens alone in which the two differ."""
    written: frozenset[str] = frozenset()
    """Texts to be imitated: 'demonstrations', 'corrections', 'preferred'."""
    nothing: str = "has no training pair"
    """Problem of the snapshot, in words, when no example is left."""
    remedy: str = "Judge more comparisons in which one answer is better"
    """Remedy, in words."""


class RowLabels:
    """Labels of a row's completions besides their ranking, as far as a method uses them."""

    def __init__(self, row: SnapshotRow, labels: UsedLabels, *, again: bool) -> None:
        self._row = row
        self._ratings = [item for item in row.ratings if among(item.criterion, labels.criteria)]
        asked = labels.questions | labels.covariates
        self._questions = [
            (item.completion, item.question, str(item.value))
            for item in row.answers
            if item.completion is not None
            and item.target == Target(item.completion)
            and item.question in asked
        ]
        self._flags = [
            item
            for item in row.spans
            # A sub-category counts for its category, too.
            if among(item.category, labels.categories) or among(item.parent, labels.categories)
        ]
        self._missing = [item for item in row.missing if among(item.category, labels.missing)]
        verdict = row.verdict if row.review is None else "" if again else row.review.verdict
        self._verdict = verdict if labels.verdicts and verdict in ("both_good", "both_bad") else ""
        self._places = labels.categories is None or bool(labels.categories)
        rated = {rating.completion for rating in self._ratings}
        rated |= {name for name, question, _ in self._questions if question in labels.questions}
        rated |= {flag.completion for flag in self._flags} | {gap.completion for gap in self._missing}
        lacks = labels.missing is None or bool(labels.missing)
        self._read_for_flags = _read(row, row.read_for_spans) if self._places else set()
        self._read_for_missing = _read(row, row.read_for_missing) if lacks else set()
        self._steps = _labelled_steps(row) if labels.steps else {}
        self.completions = rated | self._read_for_flags | self._read_for_missing | self._steps.keys()
        if self._verdict:
            self.completions |= {completion.id for completion in row.completions}

    def of(self, places: Mapping[str, int]) -> Labels:
        """Return the labels of the answers that are left, by their places."""
        texts = {completion.id: completion.text for completion in self._row.completions}
        return Labels(
            ratings=tuple(
                RatingLabel(places[item.completion], item.criterion, item.scale, item.value)
                for item in self._ratings
                if item.completion in places
            ),
            questions=tuple(
                AnswerLabel(places[name], question, value)
                for name, question, value in self._questions
                if name in places
            ),
            flags=tuple((places[item.completion], item) for item in self._flags if item.completion in places),
            missing=tuple(
                MissingInformation(places[item.completion], item.category)
                for item in self._missing
                if item.completion in places
            ),
            read_for_flags=tuple(sorted(places[name] for name in self._read_for_flags if name in places)),
            read_for_missing=tuple(sorted(places[name] for name in self._read_for_missing if name in places)),
            texts=tuple(texts[name] for name in places) if self._places else (),
            verdict=self._verdict,
            steps=tuple(sorted((places[name], of) for name, of in self._steps.items() if name in places)),
        )


def among(name: str, selected: frozenset[str] | None) -> bool:
    """Return whether a criterion or category is selected; None selects all."""
    return selected is None or name in selected


def _labelled_steps(row: SnapshotRow) -> dict[str, tuple[StepWithLabel, ...]]:
    """By completion, its steps that have a label; completions without one are left out."""
    places = {completion.id: completion.steps for completion in row.completions}
    labelled = {
        entry.completion: tuple(
            StepWithLabel(start, end, label)
            for (start, end), label in zip(places[entry.completion], entry.labels, strict=True)
            if label is not None
        )
        for entry in row.step_labels
    }
    return {name: steps for name, steps in labelled.items() if steps}


def _read(row: SnapshotRow, completion_ids: tuple[str, ...] | None) -> set[str]:
    """Ids of the completions that were read for faults of one kind.

    Older snapshots do not say: there it is those that have a fault of either kind, so that answers which
    were read and found faultless are lost.
    """
    if completion_ids is not None:
        return set(completion_ids)
    return {span.completion for span in row.spans} | {lack.completion for lack in row.missing}


@dataclass(frozen=True, slots=True)
class Example:
    """One judgment, tokenised."""

    judgment: str
    answers: tuple[EncodedAnswer, ...]
    ranks: tuple[int, ...]
    """Rank of each answer as in `losses.plackett_luce`: 1 best, equal tied, −1 not ordered, below all ranked
    ones. 0 has no part in it; all are 0 where no preference was given."""
    strength: int = 0
    """Strength of the preference for the winner, 1 to 4; 0 when not asked."""
    weight: float = 1.0
    """Weight in the loss: its loss is multiplied by this and the step's losses divided by their sum."""
    prompt: str = ""
    """The prompt's id: judgments of one prompt are not independent of each other."""
    annotator: str = ""
    """Pseudonym of the annotator; empty for a reviewer's decision."""
    labels: Labels = field(default_factory=Labels)
    """Labels besides the ranking."""
    completions: tuple[str, ...] = ()
    """Ids of the completions that `answers` are, in their order; empty for texts that are none, as corrected
    ones."""
    places: tuple[int, ...] = ()
    """Place of each answer on the annotator's screen, from 0; empty where no order is known, and of a
    reviewer's decision."""
    group: str = ""
    """Group of the annotator; empty for none, and for a reviewer's decision."""
    round: int = 0
    """Round of the judgment."""

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(winner, loser) of every pair that the ranks decide, as indexes into `answers`."""
        present = [(index, rank) for index, rank in enumerate(self.ranks) if rank]
        return tuple(
            (a, b)
            for a, first in present
            for b, second in present
            if first > 0 and (first < second or second == NOT_ORDERED)
        )

    @property
    def compared(self) -> int:
        """Return the number of answers that have a part in the ranking, ordered or not."""
        return sum(rank != 0 for rank in self.ranks)

    @property
    def ties(self) -> bool:
        """Return whether two ranked answers share a rank."""
        ranked = [rank for rank in self.ranks if rank > 0]
        return len(set(ranked)) < len(ranked)

    @property
    def tokens(self) -> int:
        """Length of the longest prompt + answer."""
        return max(len(answer.ids) for answer in self.answers)
