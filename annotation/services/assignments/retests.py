"""Test-retest: what a person judged comes back to them later, in another order."""

import math
import random

from django.db.models import Exists, OuterRef
from django.utils.crypto import salted_hmac

from annotation.choices import AssignmentState, Purpose
from annotation.models import AnnotatorTally, Assignment, Project, User
from annotation.services.assignments import randomness
from annotation.services.assignments.tallies import Turn

APART = 10
"""So many of their own submissions lie between a comparison and its return, at least."""

_FEWEST_DRAWN_FROM = 20
_MOST_DRAWN_FROM = 200


def is_retest_due(project: Project, counted: Turn | AnnotatorTally) -> bool:
    """Return True where this person has had fewer retests than the project's share of what they submitted."""
    due = project.retest_share * counted.submitted + 1e-9
    return counted.submitted > APART and counted.retests + 1 <= due


def drawn_from(project: Project) -> slice:
    """Return which of a person's submissions, the newest first, a retest is drawn from."""
    window = min(max(math.ceil(2 / project.retest_share), _FEWEST_DRAWN_FROM), _MOST_DRAWN_FROM)
    return slice(APART, APART + window)


def draw_retest(project: Project, annotator: User, turn: Turn) -> Assignment | None:
    """One of their earlier assignments, drawn by chance; None when none has lain long enough.

    Only work comes back, and each once. It is drawn from the most recent that have lain long
    enough, so that a person who has judged thousands costs no more than another.
    """
    retests = Assignment.objects.filter(retest_of=OuterRef("pk")).exclude(
        state__in=[AssignmentState.RELEASED, AssignmentState.EXPIRED]
    )
    lain = list(
        Assignment.objects.filter(
            annotator=annotator,
            state=AssignmentState.SUBMITTED,
            comparison__project=project,
            comparison__purpose=Purpose.WORK,
            retest_of__isnull=True,
        )
        .annotate(came_back=Exists(retests))
        .select_related("comparison__prompt", "comparison__project")
        .order_by("-closed_at", "-id")[drawn_from(project)]
    )
    waiting = [assignment for assignment in lain if not assignment.came_back]
    if not waiting:
        return None
    place = randomness.number_below(
        len(waiting), "retest", project=project, annotator=annotator, turn=turn.number
    )
    return waiting[place]


def other_order(first: Assignment) -> list[int]:
    """A display order in which every completion stands elsewhere than it did; a pair is swapped."""
    shown = list(first.display_order)
    if len(shown) < 2:
        return shown
    seed = salted_hmac("annotation.retest-order", str(first.pk), algorithm="sha256").digest()
    chances = random.Random(seed)  # noqa: S311 - the seed is a keyed hash
    order = shown[::-1]
    while any(before == now for before, now in zip(shown, order, strict=True)):
        chances.shuffle(order)
    return order
