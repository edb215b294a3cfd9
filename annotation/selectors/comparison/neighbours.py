"""The comparisons before and after one: in a list, or by age."""

from collections.abc import Sequence
from dataclasses import dataclass

from annotation.models import Comparison


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbours:
    """Neighbours of a comparison; None at the ends."""

    previous: int | None
    next: int | None
    position: int | None = None
    """Its place in the list, from 1; None where no list was chosen."""
    total: int | None = None


def neighbours_in(listed: Sequence[int], comparison: Comparison) -> Neighbours | None:
    """Return the neighbours in a list of comparisons; None where it is not in it any more."""
    if comparison.pk not in listed:
        return None
    place = listed.index(comparison.pk)
    return Neighbours(
        previous=listed[place - 1] if place else None,
        next=listed[place + 1] if place + 1 < len(listed) else None,
        position=place + 1,
        total=len(listed),
    )


def neighbours_by_age(comparison: Comparison) -> Neighbours:
    """Return the neighbours among all comparisons of the project, newest first. Two queries."""
    others = Comparison.objects.filter(project=comparison.project_id)
    newer = others.filter(pk__gt=comparison.pk).order_by("pk")
    older = others.filter(pk__lt=comparison.pk).order_by("-pk")
    return Neighbours(
        previous=newer.values_list("pk", flat=True).first(), next=older.values_list("pk", flat=True).first()
    )
