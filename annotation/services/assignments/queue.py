"""The open comparisons of a project in the order in which they are handed out, and the walk along it.

Newest round first, then priority, then what the project's strategy says, then age: the order of the
index `comparison_open_in_order`. The walk passes over what the person has had. Where comparisons
are judged by several people, that may be thousands that are still open to others; then the walk
starts behind the person's own last place in the queue.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from django.db.models import Exists, FloatField, OuterRef, Q, QuerySet

from annotation import selectors
from annotation.choices import AcquisitionArm, AssignmentState
from annotation.models import Assignment, Comparison, Project, Review, User
from annotation.prepared import Name, Parameter, Prepared
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
        walk = _walk(stretch, skip_locked=True, reviews=reviews)
        found = walk.first(project=project.pk, annotator=annotator.pk, **(place or {}))
        if found is not None:
            found.project = project
            return found
    return None


def first_open_waiting(project: Project, annotator: User, *, reviews: bool = False) -> Comparison | None:
    """`first_open` that waits for what others have in hand. Never None while one is left.

    Call it in a transaction that has locked no comparison. PostgreSQL keeps the lock of a row that it
    waited for, or passed over, even where the row has been taken meanwhile; so all who wait walk the
    whole queue in one order, and two of them never wait for each other.
    """
    walk = _walk(_EVERYTHING, skip_locked=False, reviews=reviews)
    found = walk.first(project=project.pk, annotator=annotator.pk)
    if found is not None:
        found.project = project
    return found


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
        if (found := _first(in_round.filter(part), project, skip_locked=True)) is not None:
            return found
    return None


def open_to(
    project: Project | Parameter, annotator: User | Parameter, *, reviews: bool = False
) -> QuerySet[Comparison]:
    """What is open to this person, in no order; `reviews` says that they are a reviewer, too."""
    unseen = Comparison.objects.filter(~Exists(_had_by(annotator)), project=project, open_slots__gt=0)
    if reviews:
        # Who decided on others' votes has no fresh eye for it.
        unseen = unseen.filter(~Exists(Review.objects.filter(comparison=OuterRef("pk"), reviewer=annotator)))
    return unseen.select_related("prompt")


def _had_by(annotator: User | Parameter) -> QuerySet[Assignment]:
    return Assignment.objects.filter(
        comparison=OuterRef("pk"), annotator=annotator, state__in=selectors.SPENT_STATES
    )


def _first(comparisons: QuerySet[Comparison], project: Project, *, skip_locked: bool) -> Comparison | None:
    found = _locked(comparisons, skip_locked=skip_locked).first()
    if found is not None:
        found.project = project
    return found


def _locked(comparisons: QuerySet[Comparison], *, skip_locked: bool) -> QuerySet[Comparison]:
    return comparisons.select_for_update(skip_locked=skip_locked, no_key=True, of=only_self())


_EVERYTHING = 0
_BEHIND = (1, 2, 3, 4)
"""The queue behind one's own place, in stretches that the index can seek."""


@cache
def _walk(stretch: int, *, skip_locked: bool, reviews: bool) -> Prepared[Comparison]:
    """The first comparison of a stretch of the queue, locked."""

    def build(p: Name) -> QuerySet[Comparison]:
        here, same = {"round_number": p("round_number")}, {"priority": p("priority")}
        score = p("score", FloatField())
        part = (
            Q(),
            Q(**here, **same, acquisition_score=score, id__gt=p("pk")),
            Q(**here, **same, acquisition_score__lt=score),
            Q(**here, priority__lt=p("priority")),
            Q(round_number__lt=p("round_number")),
        )[stretch]
        opened = open_to(p("project"), p("annotator"), reviews=reviews).filter(part)
        return _locked(opened.order_by(*QUEUE_ORDER), skip_locked=skip_locked)[:1]

    return Prepared(build)


_HEAD = Prepared(
    lambda p: (
        Comparison.objects.filter(project=p("project"), open_slots__gt=0)
        .order_by(*QUEUE_ORDER)
        .annotate(had=Exists(_had_by(p("annotator"))))
        .values_list("had")[:_LOOK_AHEAD]
    )
)
_PLACE = Prepared(
    lambda p: (
        Assignment.objects.filter(
            annotator=p("annotator"),
            state=AssignmentState.SUBMITTED,
            comparison__project=p("project"),
            slot__isnull=False,
        )
        .exclude(arm=AcquisitionArm.CONTROL)
        .order_by("-closed_at", "-id")
        .values_list(
            "comparison__round_number",
            "comparison__priority",
            "comparison__acquisition_score",
            "comparison_id",
        )[:1]
    )
)


def _has_had_the_head(project: Project, annotator: User) -> bool:
    seen = _HEAD.rows(project=project.pk, annotator=annotator.pk)
    return len(seen) == _LOOK_AHEAD and all(had for (had,) in seen)


def _own_place(project: Project, annotator: User) -> dict[str, Any] | None:
    """Where in the queue that stands which this person got last from it."""
    found = _PLACE.rows(project=project.pk, annotator=annotator.pk)
    if not found:
        return None
    return dict(zip(("round_number", "priority", "score", "pk"), found[0], strict=True))
