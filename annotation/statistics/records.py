"""The rows of the database as plain data, in a few queries however many judgments there are."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations
from typing import Any

from django.db.models import Q, QuerySet
from django.db.models.functions import Length

from annotation.choices import Purpose
from annotation.known_answers import gold_outcome
from annotation.models import Completion, Judgment, Project, RankedCompletion, Rating, SpanFlag


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """One current judgment: who said what about which completions, shown in which order."""

    pk: int
    comparison: int
    prompt: int
    round_number: int
    purpose: str
    assignment: int
    retest_of: int | None
    annotator: int
    verdict: str
    strength: int | None
    seconds: int | None
    at: datetime
    shown: tuple[int, ...]
    """Completion ids in the order in which they were displayed."""
    ranks: dict[int, int]
    undecided: frozenset[frozenset[int]]
    """Pairs that an imported set calls equal although its other pairs give them different ranks."""

    @property
    def is_first_work(self) -> bool:
        """Whether it counts for agreement: real work, and not its repetition."""
        return self.purpose == Purpose.WORK and self.retest_of is None

    @property
    def completions(self) -> tuple[int, ...]:
        """The completions in an order that everyone shares: by age."""
        return tuple(sorted(self.shown))

    def outcome(self, left: int, right: int) -> int | None:
        """1 where `left` is better, −1 where `right` is, 0 where neither; None where nothing was said."""
        first, second = self.ranks.get(left), self.ranks.get(right)
        if first is None or second is None:
            return None
        if self.undecided and frozenset((left, right)) in self.undecided:
            return 0
        return (second > first) - (second < first)

    def outcomes(self) -> list[tuple[int, int, int]]:
        """Every pair of its completions with the outcome: (older, younger, outcome)."""
        return [
            (left, right, outcome)
            for left, right in combinations(self.completions, 2)
            if (outcome := self.outcome(left, right)) is not None
        ]


def judged_in(
    project: Project, rounds: Sequence[int] | None = None, *, narrowed: Q | None = None
) -> list[Judged]:
    """The current judgments of those rounds (all for None), oldest first. Two queries."""
    judgments = _current(project, rounds)
    if narrowed is not None:
        judgments = judgments.filter(narrowed)
    ranks: dict[int, dict[int, int]] = defaultdict(dict)
    for judgment, completion, rank in RankedCompletion.objects.filter(judgment__in=judgments).values_list(
        "judgment_id", "completion_id", "rank"
    ):
        ranks[judgment][completion] = rank
    fields = judgments.order_by("id").values_list(
        "pk",
        "comparison_id",
        "comparison__prompt_id",
        "comparison__round_number",
        "comparison__purpose",
        "assignment_id",
        "assignment__retest_of_id",
        "annotator_id",
        "verdict",
        "strength",
        "active_seconds",
        "created_at",
        "assignment__display_order",
        "imported_from",
    )
    return [
        Judged(
            pk=pk,
            comparison=comparison,
            prompt=prompt,
            round_number=round_number,
            purpose=purpose,
            assignment=assignment,
            retest_of=retest_of,
            annotator=annotator,
            verdict=verdict,
            strength=strength,
            seconds=seconds,
            at=at,
            shown=tuple(shown),
            ranks=ranks.get(pk, {}),
            undecided=_undecided(shown, imported),
        )
        for (
            pk,
            comparison,
            prompt,
            round_number,
            purpose,
            assignment,
            retest_of,
            annotator,
            verdict,
            strength,
            seconds,
            at,
            shown,
            imported,
        ) in fields
    ]


def _current(project: Project, rounds: Sequence[int] | None) -> QuerySet[Judgment]:
    """What people said. Programs that judge are measured against it, and no part of it."""
    found = Judgment.objects.filter(
        comparison__project=project, superseded_by__isnull=True, annotator__is_machine=False
    ).exclude(comparison__purpose=Purpose.ARENA)
    return found if rounds is None else found.filter(comparison__round_number__in=rounds)


def _undecided(shown: Sequence[int], imported: dict[str, Any] | None) -> frozenset[frozenset[int]]:
    """Ties that the ranks could not express (annotation/formats/qa_feedback.py): they stay ties here."""
    # An imported set shows its answers in the order in which it numbers them, from 1.
    pairs = (imported or {}).get("broken_ties", ())
    return frozenset(frozenset((shown[left - 1], shown[right - 1])) for left, right in pairs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A marked stretch of one completion, in code points, half open."""

    judgment: int
    completion: int
    category: int
    start: int
    end: int


def marks_in(
    project: Project, rounds: Sequence[int] | None = None, *, category_id: int | None = None
) -> list[Mark]:
    """The marks of current judgments. One query."""
    found = SpanFlag.objects.filter(judgment__in=_current(project, rounds))
    if category_id is not None:
        found = found.filter(category_id=category_id)
    fields = ("judgment_id", "completion_id", "category_id", "start", "end")
    return [
        Mark(judgment=judgment, completion=completion, category=category, start=start, end=end)
        for judgment, completion, category, start, end in found.order_by("id").values_list(*fields)
    ]


def lengths_in(project: Project, rounds: Sequence[int] | None = None) -> dict[int, int]:
    """How many code points each completion that was judged has. One query."""
    completions = Completion.objects.filter(prompt__project=project)
    if rounds is not None:
        completions = completions.filter(comparisons__round_number__in=rounds)
    return dict(completions.annotate(length=Length("text")).values_list("pk", "length"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Rated:
    """One completion's rating on one criterion."""

    judgment: int
    completion: int
    criterion: int
    value: int


def ratings_in(project: Project, rounds: Sequence[int] | None = None) -> list[Rated]:
    """The ratings of current judgments. One query."""
    found = Rating.objects.filter(judgment__in=_current(project, rounds)).order_by("id")
    return [
        Rated(judgment=judgment, completion=completion, criterion=criterion, value=value)
        for judgment, completion, criterion, value in found.values_list(
            "judgment_id", "completion_id", "criterion_id", "value"
        )
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldAnswered:
    """One person's first answer to an item whose answer is known."""

    comparison: int
    annotator: int
    right: bool


def gold_answered_in(project: Project, rounds: Sequence[int] | None = None) -> list[GoldAnswered]:
    """First answers to gold and qualification items: a later one may stand on feedback. Two queries."""
    found = Judgment.objects.filter(
        comparison__project=project,
        comparison__gold_answer__isnull=False,
        assignment__retest_of__isnull=True,
        supersedes__isnull=True,
    )
    if rounds is not None:
        found = found.filter(comparison__round_number__in=rounds)
    return [
        GoldAnswered(
            comparison=judgment.comparison_id,
            annotator=judgment.annotator_id,
            right=gold_outcome(judgment).right,
        )
        for judgment in found.select_related("comparison__gold_answer")
        .prefetch_related("ranks")
        .order_by("id")
    ]
