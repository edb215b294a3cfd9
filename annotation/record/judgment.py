"""A judgment of one comparison, part by part: the only place where its fields and their bounds stand.

A completion stands under its id, written as a text; a category and a criterion under its key. Offsets are
code points, half open; passages, sentences and steps count from 0.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from annotation.record.base import CountOrZero, one_of, record

# Texts for a type checker, because the choices of the database are compared with them.
Verdict = Annotated[str, one_of("ranked", "equal", "both_good", "both_bad", "cannot_judge", "not_asked")]
Scale = Annotated[str, one_of("five", "seven", "thumbs")]
StepLabel = Annotated[str, one_of("correct", "wrong", "unnecessary")]
MOST_SECONDS = 2**31 - 1
"""The most that a database holds."""
COLUMNS = ("verdict", "strength", "comment", "active_seconds")
"""Fields that are columns of the judgment's row. The others are rows of their own."""


RelationKind = Annotated[str, one_of("cause", "contradicts")]


@record
class SpanLink:
    """What a span is to another one of the same judgment: it causes or contradicts it."""

    kind: RelationKind
    to: CountOrZero
    """Index of the other in the judgment's spans."""


SpanPlace = tuple[str, int, int]
"""Category, start and end of a span: no other of the same judgment and completion has all three."""


@record
class SpanPart:
    """A marked stretch of one completion, in code points, half open."""

    completion: str
    category: str
    start: int
    end: int
    quote: str
    severity: int | None = None
    """1, the mildest, upwards; None where the category asks for none."""
    note: str = ""
    text_hash: str = ""
    """SHA-256 of the completion on whose text the offsets were counted."""
    parent: str = ""
    """Of a stored one: the category that its category is a part of; empty for none."""
    is_liked: bool = False
    """Of a stored one: whether its category is a merit, and no fault."""
    relations: tuple[SpanLink, ...] = ()

    @property
    def place(self) -> SpanPlace:
        """Return what names it among the spans of its completion."""
        return self.category, self.start, self.end


@record
class EvidencePointer:
    """A place in the context passages, counted from 0."""

    passage: int
    sentence: int | None = None
    """None is the passage's title."""
    quote: str = ""
    """The sentence or the title, as it stood, of a stored one; what comes in is quoted when it is stored."""


@record
class MissingPart:
    """Information that a completion should have contained, and its places in the context."""

    completion: str
    category: str
    text: str = ""
    evidence: tuple[EvidencePointer, ...] = ()
    insert_at: int | None = None
    """The code point of the completion before which it belongs; None if not stated."""


@record
class Origin:
    """Author of an edit's replacement, and the span that it mends."""

    continuation: int | None = None
    """Id of the stored continuation of a model that it is a part of; None where it is of none."""
    span: SpanPlace | None = None
    """The span in the original; None where it mends none."""
    is_unstored: bool = False
    """True if a model wrote it and its continuation is not stored, as in an import."""
    seed: int | None = None
    """Seed of the model's text, where a file or a stored continuation says it."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """Its settings; empty where nobody wrote them down."""


BY_HAND = Origin()


@record
class Edit:
    """A local change: [start, end) of the completion, in code points, was replaced."""

    start: int
    end: int
    quote: str
    """The replaced text; empty where text was only added."""
    replacement: str
    origin: Origin = BY_HAND


@record
class CorrectionPart:
    """A completion's text as corrected by an annotator; empty removes all of it."""

    completion: str
    text: str
    edits: tuple[Edit, ...] = ()
    """The edits, in order and disjoint; none: those of a comparison of both texts."""


@record
class RatingPart:
    """One completion's rating on one criterion."""

    completion: str
    criterion: str
    scale: Scale
    value: int
    """1 to 5, 1 to 7, or 0 (thumb down) and 1 (thumb up); higher is better."""


@record
class RubricScorePart:
    """An AI annotator's score of one completion by one criterion of a rubric, and its reason."""

    completion: str
    criterion: str
    value: float
    reason: str = ""
    scale: Scale | None = None
    """Scale of the criterion, of a stored score."""
    weight: float | None = None
    """Weight of the criterion in the sum, of a stored score."""


@record
class CritiquePart:
    """A written comment on one completion."""

    completion: str
    text: str


@record
class StepLabelPart:
    """The label of one step of one completion."""

    completion: str
    step: int
    label: StepLabel


AnswerValue = str | int | float | tuple[str, ...]
"""The key of a choice, keys of several, the point of a scale, a number, a text or a date (ISO 8601)."""


def named_place(place: SpanPlace) -> dict[str, Any]:
    """Return the place of a span with its names, as files, forms and the API write it."""
    return dict(zip(("category", "start", "end"), place, strict=True))


class Target(NamedTuple):
    """The subject of an answer: the comparison, a completion, one of its steps, or a span of it."""

    completion: str | None = None
    step: int | None = None
    span: SpanPlace | None = None


COMPARISON = Target()


@record
class AnswerPart:
    """The answer to one question of the project."""

    question: str
    value: AnswerValue
    completion: str | None = None
    """None where the question is about the comparison."""
    version: int | None = None
    """Version of the question that was answered; None for the one that is asked now."""
    step: CountOrZero | None = None
    """The step of the completion that it is about; None for none."""
    span: SpanPlace | None = None
    """The span of the same judgment and completion that it is about; None for none."""

    @property
    def target(self) -> Target:
        """Return what the answer is about."""
        return Target(self.completion, self.step, self.span)


@record
class JudgmentParts:
    """One annotator's judgment of one comparison: the fields that snapshots have, too."""

    verdict: Verdict
    ranks: dict[str, int] = field(default_factory=dict)
    """Completion → rank, 1 best, equal numbers tied; empty where nobody could judge. Of a partial ranking,
    those of the best completions alone: the others are below them all, without an order. What comes in may
    leave them out where the verdict implies them."""
    strength: int | None = None
    """Strength of the preference for the winner of a pair, 1 to 4; None when not asked."""
    spans: tuple[SpanPart, ...] = ()
    missing: tuple[MissingPart, ...] = ()
    corrections: tuple[CorrectionPart, ...] = ()
    comment: str = ""
    ratings: tuple[RatingPart, ...] = ()
    critiques: tuple[CritiquePart, ...] = ()
    demonstration: str = ""
    """The answer that the annotator wrote; empty if none."""
    answers: tuple[AnswerPart, ...] = ()
    """Answers to the additional questions of the project."""


@record
class JudgmentRecord(JudgmentParts):
    """One annotator's judgment of one comparison, whole."""

    step_labels: tuple[StepLabelPart, ...] = ()
    rubric_scores: tuple[RubricScorePart, ...] = ()
    """Given by AI annotators alone."""
    active_seconds: Annotated[CountOrZero, Field(le=MOST_SECONDS)] | None = None
    """Seconds that it took; None where nobody measured them."""

    @property
    def columns(self) -> dict[str, Any]:
        """Return the values of the judgment's row, by field."""
        return {name: getattr(self, name) for name in COLUMNS}

    @property
    def has_details(self) -> bool:
        """Return True where it has parts on single completions, or texts besides the comment."""
        return bool(
            self.spans
            or self.missing
            or self.step_labels
            or self.corrections
            or self.ratings
            or self.critiques
            or self.demonstration
            or self.answers
            or self.rubric_scores
        )
