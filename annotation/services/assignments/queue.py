"""The open comparisons of a project in the order in which they are handed out, and the walk along it.

Newest round first, then priority, then what the project's strategy says, then age: the order of the
index `comparison_open_in_order`. The walk passes over what the person has had. Where comparisons
are judged by several people, that may be thousands that are still open to others; then the walk
starts behind the person's own last place in the queue.
"""

from django.db.models import Exists, OuterRef, Q, QuerySet

from annotation import selectors
from annotation.choices import AcquisitionArm, AssignmentState
from annotation.models import Assignment, Comparison, Project, Review, User
from annotation.services.assignments.leases import only_self

QUEUE_ORDER = ("-round_number", "-priority", "-acquisition_score", "id")

_LOOK_AHEAD = 50
"""So many at the head are looked at before the walk starts further back: what is new and urgent
stands there, so nobody misses it."""


def first_open(
    project: Project, annotator: User, *, wait: bool = True, reviews: bool = False
) -> Comparison | None:
    """The first open comparison that this person has not had. On PostgreSQL its row is locked.

    Never None while one is left: when nothing is found behind the person's place, the whole queue
    is walked. Without `wait`, what others have locked right now counts as not left.
    """
    everything = open_to(project, annotator, reviews=reviews).order_by(*QUEUE_ORDER)
    stretches = [everything]
    if project.overlap + project.extra_overlap > 1 and _has_had_the_head(project, annotator):
        stretches = [everything.filter(part) for part in _behind_own_place(project, annotator)] + stretches
    # Twenty people who ask at once get twenty comparisons without waiting for each other.
    # Only when all that is left is in someone's hands does one wait and look again.
    for skip_locked in (True, False) if wait else (True,):
        for stretch in stretches:
            if (found := _first(stretch, project, skip_locked=skip_locked)) is not None:
                return found
    return None


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


def open_to(project: Project, annotator: User, *, reviews: bool = False) -> QuerySet[Comparison]:
    """What is open to this person, in no order; `reviews` says that they are a reviewer, too."""
    unseen = Comparison.objects.filter(~Exists(_had_by(annotator)), project=project, open_slots__gt=0)
    if reviews:
        # Who decided on others' votes has no fresh eye for it.
        unseen = unseen.filter(~Exists(Review.objects.filter(comparison=OuterRef("pk"), reviewer=annotator)))
    return unseen.select_related("prompt")


def _had_by(annotator: User) -> QuerySet[Assignment]:
    return Assignment.objects.filter(
        comparison=OuterRef("pk"), annotator=annotator, state__in=selectors.SPENT_STATES
    )


def _first(comparisons: QuerySet[Comparison], project: Project, *, skip_locked: bool) -> Comparison | None:
    locked = comparisons.select_for_update(skip_locked=skip_locked, no_key=True, of=only_self())
    found = locked.first()
    if found is not None:
        found.project = project
    return found


def _has_had_the_head(project: Project, annotator: User) -> bool:
    head = (
        Comparison.objects.filter(project=project, open_slots__gt=0)
        .order_by(*QUEUE_ORDER)
        .annotate(had=Exists(_had_by(annotator)))
        .values_list("had", flat=True)[:_LOOK_AHEAD]
    )
    return len(seen := list(head)) == _LOOK_AHEAD and all(seen)


def _behind_own_place(project: Project, annotator: User) -> list[Q]:
    """The queue behind what this person got last from it, in stretches that the index can seek."""
    place = (
        Assignment.objects.filter(
            annotator=annotator,
            state=AssignmentState.SUBMITTED,
            comparison__project=project,
            slot__isnull=False,
        )
        .exclude(arm=AcquisitionArm.CONTROL)
        .order_by("-closed_at", "-id")
        .values_list(
            "comparison__round_number",
            "comparison__priority",
            "comparison__acquisition_score",
            "comparison_id",
        )
        .first()
    )
    if place is None:
        return []
    round_number, priority, score, pk = place
    return [
        Q(round_number=round_number, priority=priority, acquisition_score=score, id__gt=pk),
        Q(round_number=round_number, priority=priority, acquisition_score__lt=score),
        Q(round_number=round_number, priority__lt=priority),
        Q(round_number__lt=round_number),
    ]
