"""A judgment of a comparison, in the letters that its annotator saw, because its comment uses them."""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Prefetch, QuerySet
from django.utils.translation import gettext as _

from annotation.agreement.records import unordered_among
from annotation.choices import SCALE_VALUES, RatingScale, Verdict
from annotation.models import Comparison, Judgment, RankedCompletion, Rating, RubricScore
from annotation.text.edits import Piece, pieces
from annotation.text.orders import in_order, with_rest


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    """A span, missing information, rating, critique or correction, of one response or of all."""

    about: str
    """The letter of the response, as the annotator saw it; empty for the whole comparison."""
    kind: str
    text: str = ""
    quote: str = ""
    category: str = ""
    """The key of the category, for its colour."""
    severity: int | None = None
    pieces: Sequence[Piece] = ()
    """Of a correction: the difference from the response."""


class ShownJudgment:
    """A judgment as the page of its comparison shows it."""

    def __init__(self, judgment: Judgment, numbers: Mapping[int, int], name: str) -> None:
        self.judgment = judgment
        self.numbers = numbers
        self.name = name
        shown = judgment.assignment.display_order
        # An imported judgment may lack the order in which its responses were shown.
        self.order: list[int] = shown if sorted(shown) == sorted(numbers) else list(numbers)
        self.letters = dict(zip(self.order, string.ascii_uppercase, strict=False))
        self.ranks = {row.completion_id: row.rank for row in judgment.ranks.all()}
        self.superseded = hasattr(judgment, "superseded_by")
        self.is_repeated = judgment.assignment.retest_of_id is not None

    @property
    def preference(self) -> str:
        """`B > A = C`, with what it leaves without an order, or the label of a verdict without one."""
        if self.judgment.verdict != Verdict.RANKED:
            return str(self.judgment.get_verdict_display())
        order = in_order([(rank, self.letters[pk]) for pk, rank in self.ranks.items()])
        return with_rest(order, [self.letters[pk] for pk in self.unordered])

    @property
    def unordered(self) -> list[int]:
        """The completions that a partial ranking leaves without an order, in displayed order."""
        return unordered_among(self.ranks, self.order)

    @property
    def letters_in_words(self) -> str:
        """The number of the response behind each letter."""
        return ", ".join(
            _("%(letter)s is response %(number)s") % {"letter": letter, "number": self.numbers[pk]}
            for pk, letter in self.letters.items()
        )

    @property
    def opened_at(self) -> datetime | None:
        """When its annotator got the comparison; None for a revision and for an imported judgment."""
        if self.judgment.supersedes_id is not None or self.judgment.imported_from is not None:
            return None
        return self.judgment.assignment.leased_at

    @property
    def remarks(self) -> list[Remark]:
        """Everything beside the order."""
        judgment = self.judgment
        return [
            *self._spans(),
            *self._missing(),
            *(
                Remark(about=self.letters[row.completion_id], kind=str(row.criterion), text=in_words(row))
                for row in judgment.ratings.all()
            ),
            *(
                Remark(
                    about=self.letters[row.completion_id], kind=str(row.criterion), text=score_in_words(row)
                )
                for row in judgment.rubric_scores.all()
            ),
            *(
                Remark(about=self.letters[row.completion_id], kind=_("Critique"), text=row.text)
                for row in judgment.critiques.all()
            ),
            *(
                Remark(
                    about=self.letters[row.completion_id],
                    kind=_("Correction"),
                    text="" if row.text else _("(nothing should stand)"),
                    pieces=pieces(row.completion.text, row.text) if row.text else (),
                )
                for row in judgment.corrections.all()
            ),
            *self._of_the_whole(),
        ]

    def remarks_about(self, completion_id: int) -> list[Remark]:
        """Return what is written of one response, its spans aside: they stand in its text."""
        letter = self.letters[completion_id]
        spans = len(self.judgment.span_flags.all())
        return [remark for remark in self.remarks[spans:] if remark.about == letter]

    def _spans(self) -> list[Remark]:
        return [
            Remark(
                about=self.letters[span.completion_id],
                kind=str(span.category),
                text=span.note,
                quote=span.quote,
                category=span.category.key,
                severity=span.severity,
            )
            for span in self.judgment.span_flags.all()
        ]

    def _missing(self) -> list[Remark]:
        return [
            Remark(
                about=self.letters[row.completion_id],
                kind=str(row.category),
                text=row.text,
                quote=row.quote,
                category=row.category.key,
            )
            for row in self.judgment.missing_info.all()
        ]

    def _of_the_whole(self) -> list[Remark]:
        written = getattr(self.judgment, "demonstration", None)
        remarks = [Remark(about="", kind=_("Demonstration"), text=written.text)] if written else []
        if self.judgment.comment:
            remarks.append(Remark(about="", kind=_("Comment"), text=self.judgment.comment))
        return remarks


def in_words(rating: Rating) -> str:
    """Return the value of a rating with the end of its scale."""
    if rating.criterion.scale == RatingScale.THUMBS:
        return _("thumb up") if rating.value else _("thumb down")
    most = SCALE_VALUES[RatingScale(rating.criterion.scale)][-1]
    return _("%(value)s of %(most)s") % {"value": rating.value, "most": most}


def score_in_words(score: RubricScore) -> str:
    """Return an AI annotator's score with the end of its scale, and its reason."""
    most = SCALE_VALUES[RatingScale(score.criterion.scale)][-1]
    words = _("%(value)s of %(most)s") % {"value": f"{score.value:g}", "most": most}
    return f"{words}: {score.reason}" if score.reason else words


def judgments_of(comparison: Comparison) -> QuerySet[Judgment]:
    """Return every judgment of a comparison, superseded ones included, with all that belongs to it."""
    ranks = RankedCompletion.objects.order_by("rank", "id")
    return (
        Judgment.objects.filter(comparison=comparison)
        .select_related(
            *("annotator", "assignment", "guideline", "rubric__rubric", "superseded_by", "demonstration")
        )
        .prefetch_related(
            Prefetch("ranks", queryset=ranks),
            "span_flags__category",
            "missing_info__category",
            "ratings__criterion",
            "rubric_scores__criterion",
            "critiques",
            "corrections__completion",
        )
        .order_by("id")
    )
