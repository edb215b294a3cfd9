"""What the labelling screen is made of: answers, verdicts to choose from, scales, context passages."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from annotation.choices import SCALE_VALUES, FinishReason, RatingScale
from annotation.corrections import Piece, pieces, with_own_line_breaks
from annotation.forms import Entered, MissingRow, rating_field
from annotation.models import Completion, Criterion
from annotation.rendering import render_answer


@dataclass(frozen=True, slots=True)
class Choice:
    """One verdict that can be chosen."""

    value: str
    label: str
    key: str
    short: str = ""
    strength: int = 0


class CandidateOnScreen:
    """One completion as the annotator meets it: a letter, a text, and what they entered about it."""

    def __init__(self, letter: str, token: str, completion: Completion, entered: Entered, size: int) -> None:
        self.letter = letter
        self.token = token
        self.source = completion.text
        self.text_hash = completion.text_hash
        self.is_truncated = completion.finish_reason == FinishReason.LENGTH
        self.rank = entered.ranks.get(token, "")
        self.ranks = [str(rank) for rank in range(1, size + 1)]
        rows = [row for row in entered.missing if row.candidate == token]
        # One empty row stands ready: without JavaScript there is no button that adds one.
        self.missing = rows or [MissingRow(candidate=token)]
        self.missing_count = len(rows)
        self.edited = entered.corrections.get(token, self.source)
        self.critique = entered.critiques.get(token, "")

    @cached_property
    def markup(self) -> SafeString:
        """The rendered answer, with source positions."""
        return render_answer(self.source)

    @cached_property
    def truncated_badge(self) -> SafeString:
        """A badge where generation reached the token limit; empty elsewhere."""
        return render_to_string("annotation/truncated.html") if self.is_truncated else SafeString()

    @cached_property
    def changes(self) -> tuple[Piece, ...]:
        """What the edit field changes of the text; nothing where both are the same."""
        if self.edited == self.source:
            return ()
        found = pieces(self.source, with_own_line_breaks(self.source, self.edited))
        return found if any(piece.kind != "same" for piece in found) else ()


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a rating scale."""

    value: int
    label: str
    icon: str = ""


@dataclass(frozen=True, slots=True)
class Rated:
    """One answer's place under one criterion: the name of its field, and what was chosen there."""

    candidate: CandidateOnScreen
    field: str
    chosen: int | None


class CriterionOnScreen:
    """One criterion with its scale, and every answer to be rated on it."""

    def __init__(
        self, criterion: Criterion, candidates: Sequence[CandidateOnScreen], entered: Entered
    ) -> None:
        self.key = criterion.key
        self.label = criterion.label
        self.description = criterion.description
        self.scale = criterion.scale
        self.steps = _steps(RatingScale(criterion.scale))
        names = [(candidate, rating_field(candidate.token, criterion.key)) for candidate in candidates]
        self.rated = [
            Rated(candidate, name, _number(entered.ratings.get(name, ""))) for candidate, name in names
        ]


@dataclass(frozen=True, slots=True)
class Passage:
    """One context passage, with the values that name its title and its sentences in the form."""

    title: str
    value: str
    sentences: list[tuple[str, str]]


def _steps(scale: RatingScale) -> list[Step]:
    if scale == RatingScale.THUMBS:
        return [Step(0, _("thumb down"), "thumb-down"), Step(1, _("thumb up"), "thumb-up")]
    return [Step(value, str(value)) for value in SCALE_VALUES[scale]]


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None
