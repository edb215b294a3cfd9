"""Progress of one person in a round. Asked for every screen, so nothing large is counted for it each time."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.core.cache import cache
from django.db.models import Count, Exists, OuterRef, Q, QuerySet

from annotation.choices import SPENT_STATES, AssignmentState, Purpose
from annotation.models import AnnotatorTally, Assignment, Comparison, Project, RoundTally, User
from annotation.selectors.allocation import (
    Closed,
    closed_rules,
    membership_of,
    not_reserved_for_others,
    open_under,
    reservations,
)

EXACT_UP_TO = 500
"""With no more open than this, the total is counted each time; with more, it may be some seconds old."""

KEPT_SECONDS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Judged comparisons of a round, of those that one annotator can judge."""

    done: int
    total: int
    unseen: int = 0
    """Gold and retests among what they have answered: part of what a page counts, or it would tell."""

    @property
    def left(self) -> int:
        """Return the number still to judge."""
        return max(self.total - self.done, 0)

    @property
    def shown_done(self) -> int:
        """Return the number judged, as a page shows it."""
        return self.done + self.unseen

    @property
    def shown_total(self) -> int:
        """Of how many, as a page says it."""
        return self.total + self.unseen


def progress_of(
    project: Project, annotator: User, round_number: int, counted: RoundTally | None = None
) -> Progress:
    """Return the progress of `annotator` in a round; `counted`: their tally, where the caller has it.

    `total` counts what they have judged, what they hold, and what is still open to them; a
    comparison that others have filled, or that they skipped, is no part of it, nor are gold,
    qualification and retests. `done` is exact. `total` is exact near the end, see `EXACT_UP_TO`.
    """
    done, unseen = _done(project, annotator, round_number, counted)
    key = f"annotation.total:{project.pk}:{annotator.pk}:{round_number}"
    total = cache.get(key)
    if total is None:
        mine = _work_of(project.pk, annotator.pk, round_number)
        held = mine.filter(state=AssignmentState.LEASED).count()
        closed = closed_rules(project, membership_of(annotator, project)) if project.allocation else ()
        near = _count_near_the_end(project, annotator, round_number, closed)
        if near is not None:
            return Progress(done=done, total=done + held + near, unseen=unseen)
        # Counted from the person's side: they have far fewer assignments than the round comparisons.
        # Others' reservations are few beside all that is open, so one count serves everybody.
        reserved = _open(project, round_number, closed).filter(Exists(reservations()))
        for_me = reserved.filter(reserved_for=annotator).count()
        spent = mine.filter(
            not_reserved_for_others(annotator, "comparison"),
            open_under(closed, "comparison__"),
            state__in=SPENT_STATES,
            comparison__open_slots__gt=0,
        ).count()
        total = done + held + _count_open(project, round_number, closed) + for_me - spent
        cache.set(key, total, KEPT_SECONDS)
    return Progress(done=done, total=max(total, done), unseen=unseen)


def count_done(*, project_id: int, annotator_id: int, round_number: int) -> int:
    """Return the number of comparisons of a round that one person has judged, counted from the rows."""
    mine = _work_of(project_id, annotator_id, round_number)
    return mine.filter(state=AssignmentState.SUBMITTED).count()


def _done(
    project: Project, annotator: User, round_number: int, counted: RoundTally | None
) -> tuple[int, int]:
    if counted is None:
        tallies = AnnotatorTally.objects.filter(project=project, annotator=annotator)
        counted = RoundTally(*(tallies.values_list(*RoundTally._fields).first() or ()))
    counted_in, done, unseen = counted
    if counted_in != round_number:
        done = count_done(project_id=project.pk, annotator_id=annotator.pk, round_number=round_number)
        unseen = unseen if counted_in is None else 0
    return done, unseen


def _work_of(project_id: int, annotator_id: int, round_number: int) -> QuerySet[Assignment]:
    return Assignment.objects.filter(
        annotator_id=annotator_id,
        retest_of__isnull=True,
        comparison__project_id=project_id,
        comparison__round_number=round_number,
        comparison__purpose=Purpose.WORK,
    )


def _open(project: Project, round_number: int, closed: Sequence[Closed]) -> QuerySet[Comparison]:
    return Comparison.objects.filter(
        open_under(closed), project=project, round_number=round_number, open_slots__gt=0
    )


def _count_near_the_end(
    project: Project, annotator: User, round_number: int, closed: Sequence[Closed]
) -> int | None:
    """Return the number open to this person, or None where counting them would be slow."""
    had = Assignment.objects.filter(comparison=OuterRef("pk"), annotator=annotator, state__in=SPENT_STATES)
    open_ = _open(project, round_number, closed).filter(not_reserved_for_others(annotator))
    first_ones = open_.annotate(had=Exists(had))[: EXACT_UP_TO + 1]
    counted: Mapping[str, int] = first_ones.aggregate(
        seen=Count("pk"), to_them=Count("pk", filter=Q(had=False))
    )
    return counted["to_them"] if counted["seen"] <= EXACT_UP_TO else None


def _count_open(project: Project, round_number: int, closed: Sequence[Closed]) -> int:
    key = f"annotation.open:{project.pk}:{round_number}"
    if closed:
        key += ":" + hashlib.sha256(json.dumps(closed).encode()).hexdigest()
    count: int | None = cache.get(key)
    if count is None:
        count = _open(project, round_number, closed).filter(~Exists(reservations())).count()
        cache.set(key, count, KEPT_SECONDS)
    return count
