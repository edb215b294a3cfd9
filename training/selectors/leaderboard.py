"""Leaderboard: ratings from counted votes, never from judgments."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from cachetools import LRUCache, cached
from django.db.models import QuerySet, Sum

from annotation.choices import Purpose
from annotation.models import Comparison, CompletionSource, Project
from annotation.selectors.access import judged, with_answer_of
from annotation.selectors.allocation import tagged
from training.models import EloPoints, Slice, VoteCount, Voters, VoteTotals

if TYPE_CHECKING:
    # Imported here: it loads NumPy and SciPy, which only the leaderboard needs.
    from training.selectors.standings import Board, RatingGroup

MOST_GROUPS = 30

_TOLD = ("wins", "losses", "ties", "both_bad")
EVERYONE = frozenset(map(str, Voters.values))
HUMANS = EVERYONE - {Voters.MODELS.value}


@dataclass(frozen=True, kw_only=True, slots=True)
class BoardChoice:
    """The votes that count, and the controls applied to them."""

    part: str = Slice.ALL.value
    value: str = ""
    voters: frozenset[str] = HUMANS
    both_bad: bool = True
    """True counts both bad as a tie; False leaves it out."""
    style: bool = False
    """True controls for length and position: only of all votes, where they are distinguished."""


@cached(LRUCache(64), key=lambda project, choice: (*_state(project), choice), lock=Lock())
def board_of(project: Project, choice: BoardChoice) -> Board:
    """Return the leaderboard of these votes; computed once for each state of the counts."""
    return _board(project, choice)


@cached(LRUCache(32), key=lambda project, part, voters: (*_state(project), part, voters), lock=Lock())
def groups_of(project: Project, part: str, voters: frozenset[str]) -> tuple[RatingGroup, ...]:
    """Return ratings within each round or tag; those with the most votes where there are many."""
    return _grouped(project, part, voters)


@cached(LRUCache(32), key=lambda project: _state(project), lock=Lock())
def values_of(project: Project) -> dict[str, list[str]]:
    """Return the rounds and the tags that have votes, and the arena where it has."""
    return _parts(project)


def items_behind(
    project: Project, choice: BoardChoice, *, left: int, right: int | None
) -> QuerySet[Comparison]:
    """Return the judged comparisons with an answer of `left`, and of `right` if named; newest first."""
    comparisons = Comparison.objects.filter(judged(), project=project).exclude(purpose=Purpose.DELETED)
    for source in (left, right):
        if source is not None:
            comparisons = comparisons.filter(with_answer_of(pk=source))
    if choice.part == Slice.ROUND and choice.value.isdigit():
        comparisons = comparisons.filter(round_number=int(choice.value))
    if choice.part == Slice.TAG:
        comparisons = comparisons.filter(tagged("prompt__tags", choice.value))
    if choice.part == Slice.ARENA:
        comparisons = comparisons.filter(purpose=Purpose.ARENA)
    return comparisons.order_by("-pk")


def names_of(sources: set[int]) -> dict[int, tuple[str, str]]:
    """Return each source's name, and its checkpoint's name if it has one."""
    rows = CompletionSource.objects.filter(pk__in=sources).values_list("pk", "name", "checkpoint__name")
    return {pk: (name, checkpoint or "") for pk, name, checkpoint in rows}


def _state(project: Project) -> tuple[int, int]:
    """Return the project and its count state, which determine a fit."""
    version = VoteTotals.objects.filter(project=project).values_list("version", flat=True).first()
    return project.pk, version or 0


def _board(project: Project, choice: BoardChoice) -> Board:
    from training.selectors.standings import board

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


def _grouped(project: Project, part: str, voters: frozenset[str]) -> tuple[RatingGroup, ...]:
    from training.selectors.standings import groups

    rows = (
        VoteCount.objects.filter(project=project, slice=part, voters__in=voters)
        .values_list("value", "left_id", "right_id")
        .annotate(*(Sum(name) for name in _TOLD))
        .order_by()
    )
    return groups(list(rows), most=MOST_GROUPS)


def _parts(project: Project) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {}
    rows = VoteCount.objects.filter(project=project).exclude(slice=Slice.ALL)
    for part, value in rows.values_list("slice", "value").distinct().order_by("slice", "value"):
        parts.setdefault(part, []).append(value)
    if Slice.ROUND in parts:
        parts[Slice.ROUND].sort(key=lambda value: int(value))
    return parts
