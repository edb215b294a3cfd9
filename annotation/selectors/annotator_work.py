"""Work of one annotator in one project: annotations, days, skips, flags, and answers to gold items.

For their own page and for the manager's page about them. Reads only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from django.core.cache import cache
from django.db.models import Count, Exists, OuterRef, Prefetch, Q, QuerySet
from django.db.models.functions import TruncDate
from django.utils import timezone

from annotation.choices import AssignmentState, Purpose
from annotation.models import Assignment, ItemFlag, Judgment, Project, RankedCompletion, User
from annotation.selectors.comparison import ShownJudgment
from annotation.selectors.known_answers import disputes_in, gold_outcome

DAYS = 30
ON_A_PAGE = 50
MOST_COUNTED = 2000
_MANY = 1000
_KEPT_SECONDS = 60
_MOST_LISTED = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryPage:
    """Annotations of one annotator, newest first."""

    rows: Sequence[ShownJudgment]
    older: int | None
    """The assignment before which the next page begins; None on the last page."""


def submitted_by(project: Project, annotator: User) -> QuerySet[Assignment]:
    """Return the assignments that an annotator submitted; votes of arenas are none."""
    return Assignment.objects.filter(
        annotator=annotator, state=AssignmentState.SUBMITTED, comparison__project=project
    ).exclude(comparison__purpose=Purpose.ARENA)


def own_submitted_by(project: Project, annotator: User) -> QuerySet[Assignment]:
    """Return what an annotator may look up: nothing that they are asked again right now."""
    asked_again = Assignment.objects.filter(retest_of=OuterRef("pk"), state=AssignmentState.LEASED)
    return submitted_by(project, annotator).exclude(Exists(asked_again))


def counted(submitted: QuerySet[Assignment]) -> tuple[int, bool]:
    """Return how many there are, and whether there are more: nobody waits for a count of all."""
    count = submitted.order_by()[: MOST_COUNTED + 1].count()
    return min(count, MOST_COUNTED), count > MOST_COUNTED


def history_page(submitted: QuerySet[Assignment], *, before: int | None) -> HistoryPage:
    """Return a page of annotations, from the newest or from before one of them. At most four queries.

    Walks the index of assignments by annotator, state and time: few are read of many.
    """
    if before is not None and (last := submitted.filter(pk=before).first()) is not None:
        submitted = submitted.filter(
            Q(closed_at__lt=last.closed_at) | Q(closed_at=last.closed_at, pk__lt=last.pk)
        )
    pks = list(submitted.order_by("-closed_at", "-pk").values_list("pk", flat=True)[: ON_A_PAGE + 1])
    shown = pks[:ON_A_PAGE]
    judgments = (
        Judgment.objects.current()
        .filter(assignment__in=shown)
        .select_related("annotator", "assignment", "comparison__prompt", "superseded_by")
        .prefetch_related(Prefetch("ranks", queryset=RankedCompletion.objects.order_by("rank", "id")))
    )
    by_assignment = {judgment.assignment_id: shown_to_annotator(judgment) for judgment in judgments}
    return HistoryPage(
        rows=[by_assignment[pk] for pk in shown if pk in by_assignment],
        older=shown[-1] if len(pks) > ON_A_PAGE else None,
    )


def shown_to_annotator(judgment: Judgment) -> ShownJudgment:
    """Return a judgment in the letters of its annotator, of an imported one in the order of its ranks."""
    order = judgment.assignment.display_order or sorted(row.completion_id for row in judgment.ranks.all())
    numbers = {pk: number for number, pk in enumerate(order, start=1)}
    return ShownJudgment(judgment, numbers, str(judgment.annotator))


def annotations_by_day(project: Project, annotator: User) -> list[tuple[date, int]]:
    """Return the annotations of each of the last 30 days; none where all days are empty.

    One query; many annotations are counted once in a minute.
    """
    key = f"annotation.days:{project.pk}:{annotator.pk}"
    cached_days: list[tuple[date, int]] | None = cache.get(key)
    if cached_days is not None:
        return cached_days
    first = timezone.localdate() - timedelta(days=DAYS - 1)
    counts = dict(
        submitted_by(project, annotator)
        .filter(closed_at__gte=timezone.now() - timedelta(days=DAYS))
        .annotate(day=TruncDate("closed_at"))
        .order_by()
        .values_list("day")
        .annotate(Count("pk"))
    )
    days = [first + timedelta(days=number) for number in range(DAYS)]
    if not any(day in counts for day in days):
        return []
    by_day = [(day, counts.get(day, 0)) for day in days]
    if sum(counts.values()) >= _MANY:
        cache.set(key, by_day, _KEPT_SECONDS)
    return by_day


def skips_of(project: Project, annotator: User) -> list[Assignment]:
    """Return the newest comparisons that an annotator skipped."""
    skipped = Assignment.objects.filter(
        annotator=annotator, state=AssignmentState.SKIPPED, comparison__project=project
    )
    return list(skipped.select_related("comparison__prompt").order_by("-closed_at", "-pk")[:_MOST_LISTED])


def flags_by(project: Project, annotator: User) -> list[ItemFlag]:
    """Return the newest flags of an annotator."""
    flags = ItemFlag.objects.filter(assignment__annotator=annotator, assignment__comparison__project=project)
    return list(flags.select_related("assignment__comparison__prompt").order_by("-pk")[:_MOST_LISTED])


def gold_feedback_of(project: Project, annotator: User) -> dict[int, bool]:
    """Return assignment → whether its first answer agrees with the known one, of submitted gold items.

    Empty where the project gives no feedback: then not even the number of gold items is shown. Without items
    that the annotator's group disputes.
    """
    if not project.gold_feedback:
        return {}
    answered = list(
        Judgment.objects.filter(
            annotator=annotator,
            comparison__project=project,
            comparison__purpose__in=(Purpose.GOLD, Purpose.QUALIFICATION),
            comparison__gold_answer__isnull=False,
            assignment__state=AssignmentState.SUBMITTED,
            assignment__retest_of__isnull=True,
            supersedes__isnull=True,
        )
        .select_related("comparison__gold_answer")
        .prefetch_related("ranks")
    )
    disputes = disputes_in(project, [judgment.comparison_id for judgment in answered])
    return {
        judgment.assignment_id: gold_outcome(judgment).right
        for judgment in answered
        if not disputes.concerns(annotator.pk, judgment.comparison_id)
    }
