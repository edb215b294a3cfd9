"""Queues of managers: quarantined completions and gold items."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import Exists, OuterRef, QuerySet

from annotation.agreement.records import decides_a_pair, unordered_among
from annotation.choices import AssignmentState, Purpose, Verdict, WithholdingState
from annotation.models import Assignment, Comparison, GoldAnswer, Judgment, Project, Withholding
from annotation.selectors.known_answers import agrees_with_known, disputes_in
from annotation.text.identity import with_rest

EXCERPT = 160
"""So many characters around the quote of a withheld text are shown."""

_LOOKED_AT = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class WithheldText:
    """One withheld comparison; where a text seems to name its model, the quote with what is around it."""

    withholding: Withholding
    before: str
    after: str


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownItem:
    """One gold or qualification item and how annotators did on it."""

    comparison: Comparison
    answer: str
    """The known answer, in the numbers that the comparison's page gives its responses."""
    explanation: str
    is_retired: bool
    answered: int
    right: int
    disputed_by: list[str]
    """Groups of annotators for which it does not count, because they consistently answer otherwise."""

    @property
    def percent_right(self) -> int | None:
        """The share of right first answers; None before there are any."""
        return round(100 * self.right / self.answered) if self.answered else None


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldCandidate:
    """A judged comparison of which the answer is known well enough to make gold of it."""

    comparison: Comparison
    answer: str
    by_reviewer: bool


def withheld_texts(project: Project) -> list[WithheldText]:
    """Return quarantined completions, oldest first."""
    rows = (
        Withholding.objects.filter(comparison__project=project, state=WithholdingState.PENDING)
        .select_related("completion", "comparison__prompt", "requested_by")
        .order_by("pk")[:_LOOKED_AT]
    )
    return [
        WithheldText(
            withholding=row,
            before=_cut(row.completion.text[: row.start], from_end=True) if row.completion else "",
            after=_cut(row.completion.text[row.end :], from_end=False) if row.completion else "",
        )
        for row in rows
    ]


def decided_withholdings(project: Project) -> QuerySet[Withholding]:
    """Return released and discarded completions, newest first."""
    return (
        Withholding.objects.filter(comparison__project=project)
        .exclude(state=WithholdingState.PENDING)
        .select_related("decided_by", "comparison__prompt")
        .order_by("-decided_at", "-pk")
    )


def known_items(project: Project) -> list[KnownItem]:
    """All gold and qualification items, newest first, with how first answers to them were."""
    known = (
        GoldAnswer.objects.filter(comparison__project=project)
        .select_related("comparison__prompt")
        .prefetch_related("comparison__candidates")
        .order_by("-pk")
    )
    outcomes: dict[int, list[bool]] = defaultdict(list)
    by_comparison = {answer.comparison_id: answer for answer in known}
    first = Judgment.objects.filter(comparison__in=by_comparison, supersedes__isnull=True)
    for judgment in first.prefetch_related("ranks"):
        ranks = {place.completion_id: place.rank for place in judgment.ranks.all()}
        answer = by_comparison[judgment.comparison_id]
        outcomes[judgment.comparison_id].append(
            agrees_with_known(answer, verdict=judgment.verdict, ranks=ranks)
        )
    disputes = disputes_in(project, by_comparison)
    return [
        KnownItem(
            comparison=answer.comparison,
            answer=_in_words(
                answer.comparison, answer.verdict, {int(pk): rank for pk, rank in answer.ranks.items()}
            ),
            explanation=answer.explanation,
            is_retired=answer.retired_at is not None,
            answered=len(outcomes[answer.comparison_id]),
            right=sum(outcomes[answer.comparison_id]),
            disputed_by=disputes.groups_against(answer.comparison_id),
        )
        for answer in known
    ]


def gold_candidates(project: Project) -> list[GoldCandidate]:
    """Comparisons that reviewers decided or on which at least two annotators said the same, newest first.

    Only the newest are looked at. What is gold already, or still being judged, is left out.
    """
    twin = Comparison.objects.filter(
        project=project,
        completion_set=OuterRef("completion_set"),
        round_number=OuterRef("round_number"),
        purpose=Purpose.GOLD,
    )
    # Looked up for one comparison after the other: the newest few suffice, and counting would read them all.
    people = {"comparison": OuterRef("pk"), "annotator__is_machine": False}
    leased = Assignment.objects.filter(**people, state=AssignmentState.LEASED)
    judged = (
        Comparison.objects.filter(project=project, purpose=Purpose.WORK, open_slots=0, size__gte=2)
        .filter(~Exists(twin), ~Exists(leased), Exists(Judgment.objects.filter(**people)))
        .select_related("prompt", "review")
        .prefetch_related(
            "candidates",
            *(f"judgments__{name}" for name in ("ranks", "assignment", "superseded_by", "annotator")),
        )
        .order_by("-pk")[:_LOOKED_AT]
    )
    return [candidate for comparison in judged if (candidate := _candidate(comparison)) is not None]


def _candidate(comparison: Comparison) -> GoldCandidate | None:
    review = getattr(comparison, "review", None)
    if review is not None and review.decided_at is not None:
        ranks = {int(pk): rank for pk, rank in review.ranks.items()}
        verdict, by_reviewer = review.verdict, True
    else:
        preferences = _votes(comparison.judgments.all())
        if len(preferences) < 2 or any(answer != preferences[0] for answer in preferences):
            return None
        (verdict, ranks), by_reviewer = preferences[0], False
    if verdict == Verdict.NOT_ASKED or (
        verdict == Verdict.RANKED and not decides_a_pair(ranks, comparison.size)
    ):
        return None
    return GoldCandidate(
        comparison=comparison, answer=_in_words(comparison, verdict, ranks), by_reviewer=by_reviewer
    )


def _votes(judgments: Iterable[Judgment]) -> list[tuple[str, dict[int, int]]]:
    return [
        (judgment.verdict, {place.completion_id: place.rank for place in judgment.ranks.all()})
        for judgment in judgments
        if judgment.assignment.retest_of_id is None
        and not hasattr(judgment, "superseded_by")
        and not judgment.annotator.is_machine
    ]


def _in_words(comparison: Comparison, verdict: str, ranks: dict[int, int]) -> str:
    if verdict != Verdict.RANKED:
        return str(Verdict(verdict).label)
    ids = [
        candidate.completion_id for candidate in sorted(comparison.candidates.all(), key=lambda c: c.index)
    ]
    numbers = {pk: str(number) for number, pk in enumerate(ids, start=1)}
    by_rank: dict[int, list[str]] = defaultdict(list)
    for pk, rank in ranks.items():
        by_rank[rank].append(numbers[pk])
    order = " > ".join(" = ".join(sorted(by_rank[rank], key=int)) for rank in sorted(by_rank))
    return with_rest(order, [numbers[pk] for pk in unordered_among(ranks, ids)])


def _cut(text: str, *, from_end: bool) -> str:
    if len(text) <= EXCERPT:
        return text
    return f"…{text[-EXCERPT:]}" if from_end else f"{text[:EXCERPT]}…"
