"""Inputs of a judgment of one comparison, part by part, as the services take them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from annotation.text.edits import Edit


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanFlagInput:
    """A marked stretch of one completion: code points, half open, with the text that it marks."""

    completion_id: int
    category_id: int
    start: int
    end: int
    quote: str
    text_hash: str
    """SHA-256 of the completion on whose text the offsets were counted."""
    severity: int | None = None
    """1, the mildest, to the category's `severity_steps`; None where it has none."""
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvidencePointer:
    """A sentence of a context passage, both counted from 0; without a sentence, the passage's title."""

    passage: int
    sentence: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingInfoInput:
    """Something that a completion should have said: in words, by evidence, or both."""

    completion_id: int
    category_id: int
    text: str = ""
    insert_at: int | None = None
    """Position in the answer where it belongs: before this code point."""
    passage: int | None = None
    sentence: int | None = None
    further_evidence: tuple[EvidencePointer, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StepLabelInput:
    """The label of one step of a completion, in the words of `choices.StepLabel`; steps count from 0."""

    completion_id: int
    step: int
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CorrectionInput:
    """A completion as it should have been. Empty: nothing of it should stand."""

    completion_id: int
    text: str
    edits: tuple[Edit, ...] = ()
    """The edits that make the text, with their origins; none: those of a comparison of both texts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RatingInput:
    """One completion's rating on one criterion, in the numbers of `choices.SCALE_VALUES`."""

    completion_id: int
    criterion_id: int
    value: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RubricScoreInput:
    """An AI annotator's score of one completion by one criterion of a rubric, and its reason."""

    completion_id: int
    criterion_id: int
    """Of a `RubricCriterion`."""
    value: float
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CritiqueInput:
    """Words on one completion."""

    completion_id: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgmentAnswer:
    """All inputs of one submission."""

    verdict: str
    ranks: Mapping[int, int] = field(default_factory=dict)
    """Completion id → rank, 1 best, equal numbers tied. May be left out where the verdict implies them. Of
    three or more completions the best may be ranked alone."""
    strength: int | None = None
    comment: str = ""
    span_flags: tuple[SpanFlagInput, ...] = ()
    missing_info: tuple[MissingInfoInput, ...] = ()
    step_labels: tuple[StepLabelInput, ...] = ()
    corrections: tuple[CorrectionInput, ...] = ()
    ratings: tuple[RatingInput, ...] = ()
    critiques: tuple[CritiqueInput, ...] = ()
    demonstration: str = ""
    """The answer as the annotator would have written it; empty when they wrote none."""
    active_seconds: int | None = None
    rubric_scores: tuple[RubricScoreInput, ...] = ()
    """Given by AI annotators alone."""

    @property
    def has_details(self) -> bool:
        """Return True where it has parts on single completions, or texts besides the comment."""
        return bool(
            self.span_flags
            or self.missing_info
            or self.step_labels
            or self.corrections
            or self.ratings
            or self.critiques
            or self.demonstration
            or self.rubric_scores
        )
