"""What the leaderboard shows: ratings from counted votes. Reads counts, never judgments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db.models import QuerySet, Sum

from annotation.choices import Purpose
from annotation.kept import Kept
from annotation.models import Comparison, CompletionSource, Project
from annotation.selectors import judged, tagged, with_answer_of
from training.models import EloPoints, Slice, VoteCount, Voters, VoteTotals

if TYPE_CHECKING:
    # Brings NumPy and SciPy, which a web worker that shows no leaderboard never loads.
    from training.standings import Board, Group

MOST_GROUPS = 30

_TOLD = ("wins", "losses", "ties", "both_bad")
EVERYONE = frozenset(map(str, Voters.values))
HUMANS = EVERYONE - {Voters.MODELS.value}


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Which votes count, and what they are cleared of."""

    part: str = Slice.ALL.value
    value: str = ""
    voters: frozenset[str] = HUMANS
    both_bad: bool = True
    """Whether both bad is a tie; else it is left out."""
    style: bool = False
    """Whether length and position are controlled for: only of all votes, where they are told apart."""


_boards: Kept[tuple[object, ...], Board] = Kept(64)
_groups: Kept[tuple[object, ...], tuple[Group, ...]] = Kept(32)
_values: Kept[tuple[object, ...], dict[str, list[str]]] = Kept(32)


def board_of(project: Project, choice: Choice) -> Board:
    """The leaderboard of these votes; computed once for each state of the counts."""
    return _boards.get((*_state(project), choice), lambda: _board(project, choice))


def groups_of(project: Project, part: str, voters: frozenset[str]) -> tuple[Group, ...]:
    """Ratings within each round or tag; those with the most votes where there are many."""
    return _groups.get((*_state(project), part, voters), lambda: _grouped(project, part, voters))


def values_of(project: Project) -> dict[str, list[str]]:
    """The rounds and the tags that have votes, and the arena where it has."""
    return _values.get(_state(project), lambda: _parts(project))


def items_behind(project: Project, choice: Choice, *, left: int, right: int | None) -> QuerySet[Comparison]:
    """The judged comparisons with an answer of `left`, and one of `right` where named; newest first."""
    found = Comparison.objects.filter(judged(), project=project)
    for source in (left, right):
        if source is not None:
            found = found.filter(with_answer_of(pk=source))
    if choice.part == Slice.ROUND and choice.value.isdigit():
        found = found.filter(round_number=int(choice.value))
    if choice.part == Slice.TAG:
        found = found.filter(tagged("prompt__tags", choice.value))
    if choice.part == Slice.ARENA:
        found = found.filter(purpose=Purpose.ARENA)
    return found.order_by("-pk")


def names_of(sources: set[int]) -> dict[int, tuple[str, str]]:
    """Source → its name, and the name of its checkpoint where it is one."""
    rows = CompletionSource.objects.filter(pk__in=sources).values_list("pk", "name", "checkpoint__name")
    return {pk: (name, checkpoint or "") for pk, name, checkpoint in rows}


def _state(project: Project) -> tuple[int, int]:
    """The project and how often its counts have changed: all that a fit depends on."""
    version = VoteTotals.objects.filter(project=project).values_list("version", flat=True).first()
    return project.pk, version or 0


def _board(project: Project, choice: Choice) -> Board:
    from training.standings import board

    style = choice.style and choice.part == Slice.ALL
    keys = ("left_id", "right_id", *(("length_difference", "left_first") if style else ()))
    rows = (
        VoteCount.objects.filter(
            project=project, slice=choice.part, value=choice.value, voters__in=choice.voters
        )
        .values_list(*keys)
        .annotate(*(Sum(name) for name in _TOLD))
        .order_by(*keys)
    )
    everything = choice.part == Slice.ALL and choice.voters == HUMANS
    points = EloPoints.objects.filter(project=project) if everything else EloPoints.objects.none()
    return board(list(rows), both_bad=choice.both_bad, elo=dict(points.values_list("source_id", "points")))


def _grouped(project: Project, part: str, voters: frozenset[str]) -> tuple[Group, ...]:
    from training.standings import groups

    rows = (
        VoteCount.objects.filter(project=project, slice=part, voters__in=voters)
        .values_list("value", "left_id", "right_id")
        .annotate(*(Sum(name) for name in _TOLD))
        .order_by()
    )
    return groups(list(rows), most=MOST_GROUPS)


def _parts(project: Project) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    rows = VoteCount.objects.filter(project=project).exclude(slice=Slice.ALL)
    for part, value in rows.values_list("slice", "value").distinct().order_by("slice", "value"):
        found.setdefault(part, []).append(value)
    if Slice.ROUND in found:
        found[Slice.ROUND].sort(key=lambda value: int(value))
    return found
