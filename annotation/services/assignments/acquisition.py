"""Puts the open comparisons of a project's newest round in the order that its strategy wants."""

import math
from collections.abc import Mapping

from django.db import transaction
from django.db.models import Q, QuerySet

from annotation.choices import (
    FOLLOWS_HEAD,
    AcquisitionStrategy,
    AssignmentState,
    Purpose,
    TaskName,
    WithholdingState,
)
from annotation.models import Comparison, Project
from annotation.selectors import access
from annotation.services.jobs import send

NEEDS_SCORES = (
    AcquisitionStrategy.UNCERTAINTY,
    AcquisitionStrategy.DISAGREEMENT,
    AcquisitionStrategy.D_OPTIMAL,
)
"""Strategies that go by what reward models say of the completions."""

_WRITTEN_AT_ONCE = 200
"""So many rows are locked at a time: whoever asks for work meanwhile waits for a moment at most."""


def score_open_comparisons(*, project: Project) -> int:
    """Write what the project's strategy says of each comparison of the newest round that may still be asked.

    Open ones, ones that someone holds and might give back, and withheld ones. Returns how many rows
    changed; calling it again changes none. A comparison whose completions no reward model has
    scored stands in the middle of the others; for D-optimality it is taken for an even match. Where the
    strategy follows a head, a worker chooses, and nothing is written here.
    """
    strategy = Project.objects.values_list("acquisition", flat=True).get(pk=project.pk)
    if strategy in FOLLOWS_HEAD:
        send(TaskName.UPDATE_ACQUISITION, project.pk)
        return 0
    in_round = Comparison.objects.filter(
        project=project, round_number=access.current_round(project), purpose=Purpose.WORK
    )
    rows = list(_may_still_be_asked(in_round).values_list("pk", "shuffle", "acquisition_score"))
    shuffles = {pk: shuffle for pk, shuffle, _ in rows}
    values = _values(strategy, shuffles, in_round)
    return write_scores({pk: values[pk] for pk, _, before in rows if not math.isclose(values[pk], before)})


def score_new_comparison(*, comparison: Comparison) -> None:
    """Give a comparison that was just created its place, where that takes no look at the others.

    Asks the database nothing where the project goes by age. D-optimality and what reward models have
    not scored yet wait for `score_open_comparisons`.
    """
    strategy = comparison.project.acquisition
    if strategy == AcquisitionStrategy.RANDOM:
        values = _values(strategy, {comparison.pk: comparison.shuffle}, Comparison.objects.none())
    elif strategy in (AcquisitionStrategy.UNCERTAINTY, AcquisitionStrategy.DISAGREEMENT):
        values = _values(strategy, {comparison.pk: 0}, Comparison.objects.filter(pk=comparison.pk))
    else:
        return
    comparison.acquisition_score = values[comparison.pk]
    Comparison.objects.filter(pk=comparison.pk).update(acquisition_score=comparison.acquisition_score)


def _may_still_be_asked(comparisons: QuerySet[Comparison]) -> QuerySet[Comparison]:
    held = Q(assignments__state=AssignmentState.LEASED)
    withheld = Q(withholding__state=WithholdingState.PENDING)
    return comparisons.filter(Q(open_slots__gt=0) | held | withheld).distinct().order_by("pk")


def _values(
    strategy: str, shuffles: Mapping[int, int], in_round: QuerySet[Comparison]
) -> Mapping[int, float]:
    if strategy == AcquisitionStrategy.AGE:
        return dict.fromkeys(shuffles, 0.0)
    # NumPy is 25 MB that a web process without a strategy need not hold.
    from annotation.acquisition.values import values_of

    return values_of(strategy, shuffles, in_round)


def write_scores(values: Mapping[int, float]) -> int:
    """Write the scores of comparisons by id; return how many they are."""
    ids = sorted(values)
    for first in range(0, len(ids), _WRITTEN_AT_ONCE):
        some = ids[first : first + _WRITTEN_AT_ONCE]
        with transaction.atomic():
            # In the order of their ids, so that two who do this at once never wait for each other crosswise.
            locked = Comparison.objects.select_for_update(no_key=True).filter(pk__in=some).order_by("pk")
            rows = list(locked.only("pk"))
            for row in rows:
                row.acquisition_score = values[row.pk]
            Comparison.objects.bulk_update(rows, ["acquisition_score"])
    return len(ids)
