"""Reviews: the queue, and one comparison with its votes, blind until it is decided.

Reads only. Completions have opaque names and an order of their own in every review; until the
decision neither who voted nor which model wrote what is in anything that leaves this module.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from django.db.models import Case, Exists, IntegerField, OuterRef, QuerySet, Value, When
from django.utils.crypto import salted_hmac
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from annotation.agreement.records import unordered_among
from annotation.choices import (
    SCALE_VALUES,
    STRENGTHS,
    AssignmentState,
    FinishReason,
    RatingScale,
    ReviewReason,
    Verdict,
)
from annotation.models import (
    Assignment,
    Comparison,
    Completion,
    Demonstration,
    ItemFlag,
    Judgment,
    MissingInfo,
    Project,
    Rating,
    Review,
    SpanFlag,
    User,
)
from annotation.selectors.comparison import Traces, completion_ids_by_name
from annotation.text.identity import with_rest
from annotation.text.rendering import render_answer, render_markdown
from annotation.text.step_markup import ShownStep


def judgments_that_count(comparison: Comparison) -> QuerySet[Judgment]:
    """The judgments of a comparison that stand, one per person: no retest, nothing superseded."""
    return (
        Judgment.objects.current()
        .filter(
            comparison=comparison,
            assignment__retest_of__isnull=True,
            annotator__is_machine=False,
        )
        .order_by("pk")
    )


def not_annotated_by(reviews: QuerySet[Review], person: User) -> QuerySet[Review]:
    """Of these reviews those whose comparison this person neither judged nor holds as annotator."""
    assignments = Assignment.objects.filter(
        comparison=OuterRef("comparison"),
        annotator=person,
        state__in=[AssignmentState.LEASED, AssignmentState.SUBMITTED],
    )
    return reviews.filter(~Exists(assignments))


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownCompletion:
    """One answer on a review's page."""

    name: str
    """Opaque; what the form sends."""
    letter: str
    markup: SafeString
    is_truncated: bool = False
    steps: Sequence[ShownStep] = ()
    """Of a trace, which is shown by them and not by its markup."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VoteRemark:
    """One thing that a vote says beside its verdict, in words."""

    about: str
    """The letter of an answer; empty for the comparison as a whole."""
    kind: str
    text: str
    quote: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReviewVote:
    """An annotator's vote without their name."""

    number: int
    verdict: str
    remarks: list[VoteRemark]
    letters: list[tuple[str, str]]
    """The letter of an answer on the annotator's screen, and on this page: their words use the former.
    Empty where both are the same."""
    annotator: str
    """Empty until the review is decided."""


def open_reviews_for(project: Project, reviewer: User) -> QuerySet[Review]:
    """Return the reviews open to this reviewer, the most urgent reason first, then the oldest."""
    reasons = (
        ReviewReason.FLAGGED,
        ReviewReason.REQUESTED,
        ReviewReason.DISAGREEMENT,
        ReviewReason.RANDOM,
    )
    order = Case(
        *(When(reason=reason, then=Value(place)) for place, reason in enumerate(reasons)),
        output_field=IntegerField(),
    )
    waiting = Review.objects.filter(comparison__project=project, decided_at__isnull=True)
    return not_annotated_by(waiting, reviewer).order_by(order, "opened_at", "id")


def decided_reviews_of(project: Project) -> QuerySet[Review]:
    """Return decided reviews, newest first."""
    return Review.objects.filter(comparison__project=project, decided_at__isnull=False).order_by(
        "-decided_at", "-id"
    )


class ReviewPage:
    """One review as its page shows it."""

    def __init__(self, review: Review) -> None:
        self.review = review
        self.prompt = review.comparison.prompt
        self._ids = completion_ids_by_name(review)
        self._letters = dict(zip(self._ids.values(), string.ascii_uppercase, strict=False))

    @property
    def size(self) -> int:
        """Return the number of completions."""
        return len(self._ids)

    @cached_property
    def turns(self) -> list[tuple[str, SafeString]]:
        """The chat that the answers answer."""
        return [(turn["role"], render_markdown(turn["content"])) for turn in self.prompt.messages]

    @cached_property
    def completions(self) -> list[ShownCompletion]:
        """The answers, in this review's order."""
        completions = Completion.objects.in_bulk(self._ids.values())
        traces = Traces(self.review.comparison, list(completions.values()))
        return [
            ShownCompletion(
                name=name,
                letter=self._letters[pk],
                markup=SafeString() if completions[pk].step_count else render_answer(completions[pk].text),
                steps=traces.of(completions[pk], ()),
                is_truncated=completions[pk].finish_reason == FinishReason.LENGTH,
            )
            for name, pk in self._ids.items()
        ]

    @cached_property
    def votes(self) -> list[ReviewVote]:
        """Return the votes in random order: it must not reveal who came first."""
        judgments = judgments_that_count(self.review.comparison).select_related("annotator", "assignment")
        parts = ("ranks", "span_flags__category", "missing_info__category", "corrections", "critiques")
        rows = judgments.prefetch_related(*parts, "ratings__criterion")
        drawn = sorted(rows, key=self._place_of)
        return [self._vote(number, judgment) for number, judgment in enumerate(drawn, start=1)]

    @cached_property
    def flags(self) -> list[ItemFlag]:
        """Return the annotators' flags on this comparison."""
        return list(ItemFlag.objects.filter(assignment__comparison=self.review.comparison).order_by("pk"))

    @property
    def decision(self) -> str:
        """Return the decision in words."""
        ranks = {int(pk): rank for pk, rank in self.review.ranks.items()}
        return self._in_words(self.review.verdict, ranks)

    def _place_of(self, judgment: Judgment) -> str:
        key = f"{self.review.pk}:{judgment.pk}"
        return salted_hmac("annotation.review.vote", key, algorithm="sha256").hexdigest()

    def _vote(self, number: int, judgment: Judgment) -> ReviewVote:
        ranks = {place.completion_id: place.rank for place in judgment.ranks.all()}
        words = self._in_words(judgment.verdict, ranks)
        if judgment.strength:
            words = f"{words}, {STRENGTHS[judgment.strength]}"
        return ReviewVote(
            number=number,
            verdict=words,
            remarks=self._remarks(judgment),
            letters=self._letters_on_their_screen(judgment),
            annotator=str(judgment.annotator) if self.review.decided_at else "",
        )

    def _letters_on_their_screen(self, judgment: Judgment) -> list[tuple[str, str]]:
        theirs = [
            (letter, self._letters[pk])
            for letter, pk in zip(string.ascii_uppercase, judgment.assignment.display_order, strict=False)
        ]
        return theirs if any(their != our for their, our in theirs) else []

    def _in_words(self, verdict: str, ranks: dict[int, int]) -> str:
        if verdict != Verdict.RANKED or len(self._ids) == 1:
            return str(Verdict(verdict).label)
        by_rank: dict[int, list[str]] = {}
        for pk, rank in ranks.items():
            by_rank.setdefault(rank, []).append(self._letters[pk])
        order = " > ".join(" = ".join(sorted(by_rank[rank])) for rank in sorted(by_rank))
        return with_rest(order, [self._letters[pk] for pk in unordered_among(ranks, self._letters)])

    def _remarks(self, judgment: Judgment) -> list[VoteRemark]:
        """Marks, missing info, ratings, critiques, corrections, the demonstration and the comment."""
        entries = [
            *(_mark(flag) for flag in judgment.span_flags.all()),
            *(_missing(info) for info in judgment.missing_info.all()),
            *(_rating(rating) for rating in judgment.ratings.all()),
            *(
                (critique.completion_id, _("critique"), critique.text, "")
                for critique in judgment.critiques.all()
            ),
            *(
                (correction.completion_id, _("corrected to"), correction.text, "")
                for correction in judgment.corrections.all()
            ),
        ]
        if (written := Demonstration.objects.filter(judgment=judgment).first()) is not None:
            entries.append((None, _("would have written"), written.text, ""))
        if judgment.comment:
            entries.append((None, _("comment"), judgment.comment, ""))
        # The answers in the order of the page, the comparison as a whole at the end.
        remarks = [
            VoteRemark(about=self._letters[about] if about else "", kind=kind, text=text, quote=quote)
            for about, kind, text, quote in entries
        ]
        return sorted(remarks, key=lambda remark: remark.about or "~")


def _mark(flag: SpanFlag) -> tuple[int | None, str, str, str]:
    severity = _("severity %(step)s") % {"step": flag.severity} if flag.severity else ""
    text = " · ".join(part for part in (severity, flag.note) if part)
    return flag.completion_id, str(flag.category), text, flag.quote


def _missing(info: MissingInfo) -> tuple[int | None, str, str, str]:
    return info.completion_id, str(info.category), info.text, info.quote


def _rating(rating: Rating) -> tuple[int | None, str, str, str]:
    if rating.criterion.scale == RatingScale.THUMBS:
        value = _("thumb up") if rating.value else _("thumb down")
    else:
        most = SCALE_VALUES[RatingScale(rating.criterion.scale)][-1]
        value = _("%(value)s of %(most)s") % {"value": rating.value, "most": most}
    return rating.completion_id, str(rating.criterion), value, ""
