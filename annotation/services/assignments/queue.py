"""The open comparisons of a project in the order in which they are handed out, and the walk along it.

Newest round first, then priority, then what the project's strategy says, then age: the order of the
index `comparison_open_in_order`. The walk passes over what the person has had. Where comparisons
are judged by several people, that may be thousands that are still open to others; then the walk
starts behind the person's own last place in the queue.
"""

from collections.abc import Mapping
from typing import Any

from django.db.models import Exists, F, OuterRef, Q, QuerySet

from annotation.choices import AcquisitionArm, AssignmentState
from annotation.models import Assignment, Comparison, Project, Review, User
from annotation.selectors import access
from annotation.selectors.allocation import allotted_to
from annotation.services.assignments.leases import only_self

QUEUE_ORDER = ("-round_number", "-priority", "-acquisition_score", "id")

_LOOK_AHEAD = 50
"""So many at the head are looked at before the walk starts further back: what is new and urgent
stands there, so nobody misses it."""


def first_open(project: Project, annotator: User, *, reviews: bool = False) -> Comparison | None:
    """The first open comparison that this person has not had. On PostgreSQL its row is locked.

    Twenty people who ask at once get twenty comparisons without waiting for each other: what others
    have locked right now counts as not left. When nothing is found behind the person's place, the
    whole queue is walked.
    """
    place: Mapping[str, Any] | None = None
    if project.overlap + project.extra_overlap > 1 and _has_had_the_head(project, annotator):
        place = _own_place(project, annotator)
    for stretch in [*(_BEHIND if place else ()), _EVERYTHING]:
        comparison = _walk(stretch, project, annotator, place or {}, skip_locked=True, reviews=reviews)
        if comparison is not None:
            return comparison
    return None


def first_open_waiting(project: Project, annotator: User, *, reviews: bool = False) -> Comparison | None:
    """`first_open` that waits for what others have in hand. Never None while one is left.

    Call it in a transaction that has locked no comparison. PostgreSQL keeps the lock of a row that it
    waited for, or passed over, even where the row has been taken meanwhile; so all who wait walk the
    whole queue in one order, and two of them never wait for each other.
    """
    return _walk(_EVERYTHING, project, annotator, {}, skip_locked=False, reviews=reviews)


def any_open(
    project: Project, annotator: User, *, round_number: int, start: int, reviews: bool = False
) -> Comparison | None:
    """An open comparison of a round for the control arm: the first in random order from `start` on.

    None when others hold all of them right now.
    """
    in_round = (
        open_to(project, annotator, reviews=reviews).filter(round_number=round_number).order_by("shuffle")
    )
    for part in (Q(shuffle__gte=start), Q(shuffle__lt=start)):
        if (comparison := _first(in_round.filter(part), project, skip_locked=True)) is not None:
            return comparison
    return None


def open_to(project: Project, annotator: User, *, reviews: bool = False) -> QuerySet[Comparison]:
    """Return the comparisons open to this person, in no order; `reviews`: they are a reviewer, too."""
    unseen = Comparison.objects.filter(
        ~Exists(_had_by(annotator)), allotted_to(project, annotator), project=project, open_slots__gt=0
    )
    if reviews:
        # Who decided on others' votes has no fresh eye for it.
        unseen = unseen.filter(~Exists(Review.objects.filter(comparison=OuterRef("pk"), reviewer=annotator)))
    return unseen.select_related("prompt")


def _had_by(annotator: User) -> QuerySet[Assignment]:
    return Assignment.objects.filter(
        comparison=OuterRef("pk"), annotator=annotator, state__in=access.SPENT_STATES
    )


def _first(comparisons: QuerySet[Comparison], project: Project, *, skip_locked: bool) -> Comparison | None:
    comparison = _locked(comparisons, skip_locked=skip_locked).first()
    if comparison is not None:
        comparison.project = project
    return comparison


def _locked(comparisons: QuerySet[Comparison], *, skip_locked: bool) -> QuerySet[Comparison]:
    return comparisons.select_for_update(skip_locked=skip_locked, no_key=True, of=only_self())


_EVERYTHING = 0
_BEHIND = (1, 2, 3, 4)
"""The queue behind one's own place, in stretches that the index can seek."""


def _walk(
    stretch: int,
    project: Project,
    annotator: User,
    place: Mapping[str, Any],
    *,
    skip_locked: bool,
    reviews: bool,
) -> Comparison | None:
    """Return the first comparison of a stretch of the queue, locked."""
    part = Q()
    if stretch != _EVERYTHING:
        here, same = {"round_number": place["round_number"]}, {"priority": place["priority"]}
        part = {
            1: Q(**here, **same, acquisition_score=place["score"], id__gt=place["pk"]),
            2: Q(**here, **same, acquisition_score__lt=place["score"]),
            3: Q(**here, priority__lt=place["priority"]),
            4: Q(round_number__lt=place["round_number"]),
        }[stretch]
    opened = open_to(project, annotator, reviews=reviews).filter(part)
    return _first(opened.order_by(*QUEUE_ORDER), project, skip_locked=skip_locked)


def _has_had_the_head(project: Project, annotator: User) -> bool:
    head = Comparison.objects.filter(allotted_to(project, annotator), project=project, open_slots__gt=0)
    seen = (
        head.order_by(*QUEUE_ORDER)
        .annotate(had=Exists(_had_by(annotator)))
        .values_list("had", flat=True)[:_LOOK_AHEAD]
    )
    return len(seen) == _LOOK_AHEAD and all(seen)


def _own_place(project: Project, annotator: User) -> Mapping[str, Any] | None:
    """Return where in the queue that stands which this person got last from it."""
    return (
        Assignment.objects.filter(
            annotator=annotator,
            state=AssignmentState.SUBMITTED,
            comparison__project=project,
            slot__isnull=False,
        )
        .exclude(arm=AcquisitionArm.CONTROL)
        .order_by("-closed_at", "-id")
        .values(
            round_number=F("comparison__round_number"),
            priority=F("comparison__priority"),
            score=F("comparison__acquisition_score"),
            pk=F("comparison_id"),
        )
        .first()
    )
