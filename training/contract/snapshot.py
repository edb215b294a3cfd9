"""Rows of a snapshot: one judgment each, with everything that a method may learn from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from training.contract.files import (
    ContractError,
    canonical_json,
    known_fields,
    require,
    require_types,
)

Split = Literal["train", "held-out"]
Scale = Literal["five", "seven", "thumbs"]
Verdict = Literal["ranked", "equal", "both_good", "both_bad", "cannot_judge", "not_asked"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """One context passage, as sentences, so that evidence can point at one of them."""

    title: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotCompletion:
    """One model output that was judged."""

    id: str
    text: str
    source: str
    """Who wrote it: a checkpoint's name, or the name of an imported set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotSpan:
    """A marked stretch of one completion, in code points, half open."""

    completion: str
    category: str
    start: int
    end: int
    quote: str
    severity: int | None = None
    """1, the mildest, upwards; None where the category asks for none."""
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotEvidence:
    """A place in the context passages, counted from 0."""

    passage: int
    sentence: int | None = None
    """None is the passage's title."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotMissing:
    """Something that a completion should have said, and the places in the context that say it."""

    completion: str
    category: str
    text: str = ""
    evidence: tuple[SnapshotEvidence, ...] = ()
    insert_at: int | None = None
    """Where in the completion it belongs: before this code point; None when that was not said."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotEdit:
    """One local change: [start, end) of the completion, in code points, was replaced."""

    start: int
    end: int
    quote: str
    """What stood there; empty where text was only added."""
    replacement: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotCorrection:
    """A completion's text as an annotator would have had it. Empty: nothing of it should stand."""

    completion: str
    text: str
    edits: tuple[SnapshotEdit, ...] = ()
    """What was changed, in order and apart; none where only the whole text is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotRating:
    """One completion's rating on one criterion."""

    completion: str
    criterion: str
    scale: Scale
    value: int
    """1 to 5, 1 to 7, or 0 (thumb down) and 1 (thumb up); higher is better."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotCritique:
    """What was said of one completion in words."""

    completion: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotReview:
    """What a reviewer decided about the row's comparison. Every vote on it carries the same decision."""

    verdict: Verdict
    ranks: dict[str, int]
    """Completion id to rank, as in the row; empty when the reviewer could not judge either."""


_NESTED: dict[str, type] = {
    "messages": Message,
    "completions": SnapshotCompletion,
    "context": Passage,
    "spans": SnapshotSpan,
    "missing": SnapshotMissing,
    "corrections": SnapshotCorrection,
    "ratings": SnapshotRating,
    "critiques": SnapshotCritique,
}
_READ = ("read_for_spans", "read_for_missing")
"""Fields that may be unknown, None."""
_NESTED_IN_ITEMS: dict[str, type] = {"evidence": SnapshotEvidence, "edits": SnapshotEdit}


def item_from_json(kind: type, values: Any, *, where: str) -> Any:
    """An object nested in a snapshot's line, its types checked; `where` begins every error message."""
    known = known_fields(kind, values, where)
    if isinstance(known.get("sentences"), list):
        known["sentences"] = tuple(known["sentences"])
    for name, inner in _NESTED_IN_ITEMS.items():
        if isinstance(known.get(name), list):
            known[name] = tuple(
                item_from_json(inner, value, where=f"{where}, field {name!r} item {index}")
                for index, value in enumerate(known[name])
            )
    item = kind(**known)
    require_types(item, where)
    return item


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotRow:
    """One current judgment with everything that a method may learn from it."""

    judgment: str
    comparison: str
    annotator: str
    """A pseudonym: the same person has the same one in every snapshot of a project."""
    round: int
    prompt: str
    split: Split
    messages: tuple[Message, ...]
    completions: tuple[SnapshotCompletion, ...]
    verdict: Verdict
    ranks: dict[str, int]
    """Completion id to rank, 1 best, equal numbers tied; empty when nobody could judge."""
    guideline_version: int | None = None
    strength: int | None = None
    """How much better the winner of a pair is, 1 to 4; None when not asked."""
    context: tuple[Passage, ...] = ()
    spans: tuple[SnapshotSpan, ...] = ()
    missing: tuple[SnapshotMissing, ...] = ()
    corrections: tuple[SnapshotCorrection, ...] = ()
    comment: str = ""
    ratings: tuple[SnapshotRating, ...] = ()
    critiques: tuple[SnapshotCritique, ...] = ()
    demonstration: str = ""
    """The answer as the annotator would have written it; empty when they wrote none."""
    review: SnapshotReview | None = None
    """What a reviewer decided about the comparison; None when nobody has."""
    weight: float = 1.0
    """How much the judgment counts in training; below 1 where annotators are weighed by reliability."""
    read_for_spans: tuple[str, ...] | None = None
    """Ids of the completions that were read for stretches to mark: one of them without a span is faultless,
    one that is not among them may have any fault. None: nobody wrote it down, as in older snapshots."""
    read_for_missing: tuple[str, ...] | None = None
    """The same of what completions leave out."""

    def __post_init__(self) -> None:
        where = f"judgment {self.judgment}"
        require_types(self, where)
        texts = {completion.id: completion.text for completion in self.completions}
        require(bool(self.messages), where, "field 'messages' is empty")
        require(bool(texts), where, "field 'completions' is empty")
        require(len(texts) == len(self.completions), where, "field 'completions' names one id twice")
        require(self.weight >= 0, where, "field 'weight' must not be negative")
        self._check_ranks(self.ranks, texts, f"{where}: field 'ranks'")
        if self.review is not None:
            self._check_ranks(self.review.ranks, texts, f"{where}: field 'review', ranks")
        for name in ("spans", "missing", "corrections", "ratings", "critiques"):
            for item in getattr(self, name):
                require(
                    item.completion in texts, where, f"field {name!r} has a completion that is not in the row"
                )
        flagged = [{span.completion for span in self.spans}, {lack.completion for lack in self.missing}]
        for name, ids in zip(_READ, flagged, strict=True):
            read = getattr(self, name)
            if read is not None:
                field = f"field {name!r}"
                require(set(read) <= set(texts), where, f"{field} has a completion that is not in the row")
                require(ids <= set(read), where, f"{field} lacks a completion that has a flag")
        for span in self.spans:
            require(
                texts[span.completion][span.start : span.end] == span.quote != "",
                where,
                f"span {span.start}:{span.end} does not stand on its quote {span.quote!r}",
            )
        for correction in self.corrections:
            require(
                not correction.edits or _edited(texts[correction.completion], correction) == correction.text,
                where,
                f"the edits of completion {correction.completion} do not give its corrected text",
            )

    @staticmethod
    def _check_ranks(ranks: Mapping[str, int], texts: Mapping[str, str], where: str) -> None:
        require(set(ranks) <= set(texts), where, "names a completion that is not in the row")
        require(min(ranks.values(), default=1) >= 1, where, "must count from 1")

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, where: str = "row") -> Self:
        """Build a row from decoded JSON; `where` begins every error message."""
        known = known_fields(cls, values, where)
        if known.get("review") is not None:
            known["review"] = item_from_json(
                SnapshotReview, known["review"], where=f"{where}, field 'review'"
            )
        for name, kind in _NESTED.items():
            if name in known:
                require(isinstance(known[name], list), where, f"field {name!r} must be a list")
                known[name] = tuple(
                    item_from_json(kind, item, where=f"{where}, field {name!r} item {index}")
                    for index, item in enumerate(known[name])
                )
        for name in _READ:
            if isinstance(known.get(name), list):
                known[name] = tuple(known[name])
        try:
            return cls(**known)
        except ContractError as error:
            raise ContractError(f"{where}, {error}") from None

    def to_json(self) -> str:
        """The row's one spelling: what is written, and what the snapshot's digest is taken of.

        Who read what is left out where nobody wrote it down: older rows keep their spelling.
        """
        values = dataclasses.asdict(self)
        return canonical_json({k: v for k, v in values.items() if v is not None or k not in _READ})

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Every (winner id, loser id) that the ranks decide; ties give none."""
        return decided_pairs(self.ranks)


def decided_pairs(ranks: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Every (winner id, loser id) that ranks decide; ties give none."""
    for winner, winner_rank in ranks.items():
        for loser, loser_rank in ranks.items():
            if winner_rank < loser_rank:
                yield winner, loser


def _edited(text: str, correction: SnapshotCorrection) -> str | None:
    """The text after a correction's edits; None where they overlap or do not stand on their quotes."""
    parts, done = [], 0
    for edit in correction.edits:
        if not done <= edit.start <= edit.end <= len(text) or text[edit.start : edit.end] != edit.quote:
            return None
        parts += [text[done : edit.start], edit.replacement]
        done = edit.end
    return "".join([*parts, text[done:]])
