"""Parts of the labelling screen: answers, choices, scales and context passages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from annotation.choices import SCALE_VALUES, FinishReason, RatingScale, Verdict
from annotation.forms import Entered, MissingRow, rating_field
from annotation.models import Completion, Criterion
from annotation.services.people.shortcuts import shown_key
from annotation.text.edits import Piece, pieces, with_own_line_breaks
from annotation.text.rendering import render_answer
from annotation.text.step_markup import ShownStep


@dataclass(frozen=True, slots=True)
class Choice:
    """A verdict to choose."""

    value: str
    label: str
    key: str
    short: str = ""
    strength: int = 0
    letter_key: str = ""
    """A second key: the letter of the response, where no category has it."""

    @property
    def title(self) -> str:
        """The label with its keys."""
        keys = f"{self.key}, {self.letter_key}" if self.letter_key else self.key
        return f"{self.label} ({keys})"

    @property
    def attributes(self) -> SafeString:
        """Attributes of the radio button."""
        letter = format_html(' data-letter="{}"', self.letter_key) if self.letter_key else ""
        return format_html(
            'value="{}" data-key="{}"{} data-label="{}"', self.value, self.key, letter, self.label
        )

    @property
    def sign(self) -> str:
        """The sign on its step of the scale."""
        return "=" if self.value == Verdict.EQUAL else self.key if self.strength else self.short


class CandidateOnScreen:
    """A completion as shown to the annotator: a letter, a text, and the values entered about it."""

    def __init__(
        self,
        letter: str,
        token: str,
        completion: Completion,
        entered: Entered,
        size: int,
        steps: Sequence[ShownStep] = (),
    ) -> None:
        self.letter = letter
        self.token = token
        self.source = completion.text
        self.steps = steps
        self.text_hash = completion.text_hash
        self.is_truncated = completion.finish_reason == FinishReason.LENGTH
        self.rank = entered.ranks.get(token, "")
        self.ranks = [str(rank) for rank in range(1, size + 1)]
        rows = [row for row in entered.missing if row.candidate == token]
        # An empty row, because without JavaScript there is no button that adds one.
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
        """A badge if generation reached the token limit, else empty."""
        return render_to_string("annotation/truncated.html") if self.is_truncated else SafeString()

    @cached_property
    def changes(self) -> tuple[Piece, ...]:
        """The differences between text and edit field; empty if they are equal."""
        if self.edited == self.source:
            return ()
        parts = pieces(self.source, with_own_line_breaks(self.source, self.edited))
        return parts if any(piece.kind != "same" for piece in parts) else ()


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a rating scale."""

    value: int
    label: str
    icon: str = ""


@dataclass(frozen=True, slots=True)
class Rated:
    """The field of one answer's rating on one criterion, and the chosen value."""

    candidate: CandidateOnScreen
    field: str
    chosen: int | None


class CriterionOnScreen:
    """A criterion with its scale and the answers to rate."""

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
    """A context passage, with the form values of its title and sentences."""

    title: str
    value: str
    sentences: list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysOnScreen:
    """All that the list of keys hangs on: the same for nearly every comparison of a person in a project."""

    keys: tuple[tuple[str, str], ...]
    """The key of every action."""
    size: int
    ask_verdict: bool
    wins: tuple[tuple[str, str, str], ...] = ()
    """Key, letter and second key of a win, where no strength is asked for."""
    no_wins: tuple[Choice, ...] = ()
    spans: tuple[tuple[str, str], ...] = ()
    """Key and label of the categories that can be marked."""
    spans_without_key: tuple[tuple[str, str], ...] = ()
    has_spans: bool = False
    has_help: bool = False
    has_missing: bool = False
    has_evidence: bool = False
    has_criteria: bool = False
    has_steps: bool = False
    has_previous: bool = False
    ask_step_labels: bool = False
    ask_critique: bool = False
    ask_correction: bool = False
    ask_demonstration: bool = False
    ask_comment: bool = False
    is_revision: bool = False
    is_preview: bool = False

    @property
    def signs(self) -> Mapping[str, list[str]]:
        """The key of every action as printed on keyboards."""
        return {action: shown_key(key) for action, key in self.keys}

    @property
    def markup(self) -> SafeString:
        """The dialog. Rendering it takes as long as a response, so the last ones are remembered."""
        return _keys_markup(self, get_language())


@lru_cache(maxsize=128)
def _keys_markup(shown: KeysOnScreen, _language: str | None) -> SafeString:
    return render_to_string("annotation/keys.html", {"shown": shown})


def _steps(scale: RatingScale) -> list[Step]:
    if scale == RatingScale.THUMBS:
        return [Step(0, _("thumb down"), "thumbs-down"), Step(1, _("thumb up"), "thumbs-up")]
    return [Step(value, str(value)) for value in SCALE_VALUES[scale]]


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None
