"""Work of one annotator in one project: annotations, days, skips, flags, and answers to gold items.

For their own page and for the manager's page about them. Reads only.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta

from django.core.cache import cache
from django.db.models import Count, Exists, OuterRef, Prefetch, Q, QuerySet
from django.db.models.functions import TruncDate
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import AssignmentState, Purpose
from annotation.models import (
    Assignment,
    Guideline,
    ItemFlag,
    Judgment,
    Membership,
    Project,
    RankedCompletion,
    RoundTally,
    User,
)
from annotation.selectors import access
from annotation.selectors.comparison import ShownJudgment
from annotation.selectors.eligibility import submitted_today, today_starts
from annotation.selectors.known_answers import disputes_in, gold_outcome
from annotation.selectors.progress import Progress, progress_of

# Work of one person for their own pages: today's count, pace, guidelines that they have not read.
#
# Nobody is measured against anyone else. Reads only.

_RECENT = 50
_FEW = 10
_KEPT_SECONDS = 60
_TOTAL_KEPT_SECONDS = 7 * 24 * 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class PersonPace:
    """Pace of one person in one project."""

    today: int
    """Comparisons that they submitted since midnight, by the server's clock; a change of mind adds none."""
    median_seconds: int | None
    """Median active time over their last 50 answers; None before there are any."""

    @property
    def clock(self) -> str:
        """The median in seconds, or in minutes and seconds from a minute on."""
        minutes, seconds = divmod(self.median_seconds or 0, 60)
        if not minutes:
            return _("%(seconds)s s") % {"seconds": seconds}
        return _("%(minutes)s min") % {"minutes": f"{minutes}:{seconds:02}"}

    @property
    def text(self) -> str:
        """Today's count, and the median if there is one."""
        today = _("%(today)s today") % {"today": self.today}
        return f"{today} · {_('median %(clock)s') % {'clock': self.clock}}" if self.median_seconds else today


def progress_and_pace(
    project: Project, annotator: User, round_number: int, counted: RoundTally | None = None
) -> tuple[Progress, PersonPace]:
    """Return the progress of `annotator` in a round, and their pace.

    The median active time may be a minute old. The total never falls while there is work left: others who
    take comparisons, or a skip, do not move the goal of the person who looks at it.
    `counted`: their tally, of somebody who was just handed work; then the total may be a minute old as well,
    and today's count goes on from what was counted in the last minute.
    """
    key = f"{project.pk}:{annotator.pk}:{round_number}"
    if counted is not None and counted.round_number == round_number:
        total = cache.get(f"annotation.shown:{key}", 0)
        if counted.round_done < total:
            progress = Progress(done=counted.round_done, total=total, unseen=counted.round_unseen)
            return progress, pace_of(project, annotator, counted)
    exact = progress_of(project, annotator, round_number, counted)
    progress = _never_falling(exact, f"annotation.most:{key}")
    cache.set(f"annotation.shown:{key}", progress.total, _KEPT_SECONDS)
    return progress, pace_of(project, annotator, counted)


def pace_of(project: Project, annotator: User, counted: RoundTally | None = None) -> PersonPace:
    """Return today's count and the median active time of `annotator`, which may be a minute old."""
    return PersonPace(
        today=_today(project, annotator, counted), median_seconds=_median_seconds(project, annotator)
    )


def _today(project: Project, annotator: User, counted: RoundTally | None) -> int:
    """Return today's count: with a tally, what was counted in the last minute and the tally has grown by."""
    if counted is None:
        return submitted_today(project, annotator)
    in_round = counted.round_done + counted.round_unseen
    key = f"annotation.today:{project.pk}:{annotator.pk}:{counted.round_number}:{today_starts():%Y%m%d}"
    before: int | None = cache.get(key)
    if before is None:
        today = submitted_today(project, annotator)
        cache.set(key, today - in_round, _KEPT_SECONDS)
        return today
    return before + in_round


def _never_falling(progress: Progress, key: str) -> Progress:
    if progress.done >= progress.total:
        # Nothing is left: what was done is all there is.
        return progress
    shown: int = cache.get(key, 0)
    if progress.total > shown:
        cache.set(key, progress.total, _TOTAL_KEPT_SECONDS)
    return replace(progress, total=max(progress.total, shown))


def _median_seconds(project: Project, annotator: User) -> int | None:
    key = f"annotation.median:{project.pk}:{annotator.pk}"
    measured = cache.get(key)
    if measured is None:
        recent = (
            Judgment.everything.current()
            .filter(annotator=annotator, comparison__project=project)
            .order_by("-pk")
        )
        measured = list(recent.values_list("active_seconds", flat=True)[:_RECENT])
        # The first ones change the median most: the fewer there are, the sooner they are looked up again.
        if len(measured) >= _FEW:
            cache.set(key, measured, _KEPT_SECONDS * len(measured) / _RECENT)
    seconds = [duration for duration in measured if duration is not None]
    return round(statistics.median(seconds)) if seconds else None


def announced_guideline(project: Project, membership: Membership | None) -> Guideline | None:
    """Return the guidelines if this person has read or worked with an older version; else None.

    Nothing has changed for a person who has never had any on screen. Asks the database only for a person who
    has never acknowledged a version.
    """
    newest = access.current_guideline(project)
    if newest is None or membership is None:
        return None
    seen = membership.guideline_seen
    if not seen:
        seen = worked_by(project, membership.user_id)
    return newest if seen is not None and seen < newest.version else None


def worked_by(project: Project, annotator_id: int) -> int | None:
    """Return the version of the guidelines on screen at this person's last annotation, or None.

    Votes of side-by-side comparisons and imported annotations have no guidelines beside them.
    """
    versions = (
        Judgment.everything.filter(
            annotator_id=annotator_id,
            comparison__project=project,
            guideline__isnull=False,
            imported_from__isnull=True,
        )
        .order_by("-pk")
        .values_list("guideline__version", flat=True)
    )
    return versions.first()


# ── Annotator work ──

DAYS = 30
ON_A_PAGE = 50
MOST_COUNTED = 2000
_MANY = 1000
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


def history_page(submitted: QuerySet[Assignment], *, before: int | None, is_own: bool = False) -> HistoryPage:
    """Return a page of annotations, from the newest or from before one of them. At most four queries.

    Their annotator sees those, too, that a calibration session hides from others (`is_own`).

    Walks the index of assignments by annotator, state and time: few are read of many.
    """
    if before is not None and (last := submitted.filter(pk=before).first()) is not None:
        submitted = submitted.filter(
            Q(closed_at__lt=last.closed_at) | Q(closed_at=last.closed_at, pk__lt=last.pk)
        )
    pks = list(submitted.order_by("-closed_at", "-pk").values_list("pk", flat=True)[: ON_A_PAGE + 1])
    shown = pks[:ON_A_PAGE]
    judgments = (
        (Judgment.everything if is_own else Judgment.objects)
        .current()
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
