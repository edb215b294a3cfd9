"""Judgments as votes between the sources of two answers.

A ranking of k answers gives a vote for each of its pairs; a partial one none for a pair of those that it does
not order. Equal and both good are ties; both bad is a
separate kind of tie, so that a leaderboard may count it as a tie, as Chatbot Arena does, or leave it out.
Cannot judge gives no vote, nor do two answers of one source. Work and arenas give votes; gold, qualification,
repeated and unblinded comparisons do not.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from django.db.models import QuerySet
from django.db.models.functions import Length

from annotation.choices import Purpose, Verdict
from annotation.models import Completion, Judgment, RankedCompletion
from training.models import Slice, Voters

LENGTH_LEVELS = 10
"""Differences in length are rounded to tenths of the sum of both lengths."""

_VOTED = (Purpose.WORK, Purpose.ARENA)


@dataclass(frozen=True, kw_only=True, slots=True)
class Vote:
    """A judgment of one pair, the source with the lower id left."""

    project: int
    round_number: int
    tags: tuple[str, ...]
    voters: str
    arena: bool
    left: int
    right: int
    outcome: int
    """1 left won, 0 tie, −1 right won."""
    both_bad: bool
    length_difference: int
    left_first: bool

    @property
    def slices(self) -> Iterator[tuple[str, str, int, bool]]:
        """Yield the counts that it belongs to: slice, value, length difference, left first."""
        yield Slice.ALL, "", self.length_difference, self.left_first
        yield Slice.ROUND, str(self.round_number), 0, True
        if self.arena:
            yield Slice.ARENA, "", 0, True
        for tag in self.tags:
            yield Slice.TAG, tag, 0, True


@dataclass(frozen=True, slots=True)
class JudgmentVotes:
    votes: tuple[Vote, ...]
    supersedes: int | None


def judgments_by_people() -> QuerySet[Judgment]:
    """Return all current judgments by which people decide between policies: blind ones of people with an
    account, repeated comparisons aside."""
    return Judgment.objects.current().filter(
        annotator__is_machine=False,
        # Anyone with the link may open as many windows as they like.
        annotator__is_guest=False,
        blind=True,
        assignment__retest_of__isnull=True,
    )


def judged(ids: Sequence[int]) -> dict[int, JudgmentVotes]:
    """Return the votes of these judgments, by id. Two queries, three where a ranking is partial."""
    ranked: dict[int, list[_Place]] = defaultdict(list)
    for judgment, completion, rank, source, length in (
        RankedCompletion.objects.filter(judgment__in=ids)
        .order_by("judgment", "completion")
        .values_list(
            *("judgment_id", "completion_id", "rank", "completion__source_id"), Length("completion__text")
        )
    ):
        ranked[judgment].append((completion, rank, source, length))
    rows = Judgment.objects.filter(pk__in=ids).values_list(
        *("pk", "supersedes_id", "verdict", "blind", "annotator__is_guest", "annotator__is_machine"),
        *("assignment__display_order", "assignment__retest_of_id"),
        *("comparison__purpose", "comparison__project_id"),
        *("comparison__round_number", "comparison__prompt__tags"),
    )
    displayed = {row[0]: row[6] for row in rows}
    for pk, completion, source, length in _unordered(displayed, ranked):
        ranked[pk].append((completion, math.inf, source, length))
    by_id = {}
    for pk, supersedes, verdict, blind, guest, machine, shown, retest, purpose, project, number, tags in rows:
        votes: tuple[Vote, ...] = ()
        if blind and retest is None and purpose in _VOTED:
            votes = tuple(
                Vote(
                    project=project,
                    round_number=number,
                    tags=tuple(sorted({str(tag)[:200] for tag in tags})),
                    voters=Voters.MODELS if machine else Voters.GUESTS if guest else Voters.PEOPLE,
                    arena=purpose == Purpose.ARENA,
                    left=left[2],
                    right=right[2],
                    outcome=(right[1] > left[1]) - (right[1] < left[1]),
                    both_bad=verdict == Verdict.BOTH_BAD,
                    length_difference=_length_difference(left[3], right[3]),
                    left_first=shown.index(left[0]) < shown.index(right[0]),
                )
                for left, right in _pairs(ranked.get(pk, ()))
            )
        by_id[pk] = JudgmentVotes(votes, supersedes)
    return by_id


_Place = tuple[int, float, int, int]
"""completion, rank (infinite where a partial ranking gives none), source, length in characters."""


def _unordered(
    shown: Mapping[int, Sequence[int]], ranked: Mapping[int, Sequence[_Place]]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield what partial rankings leave without an order: judgment, completion, source, length."""
    rest = {
        pk: [completion for completion in shown[pk] if completion not in {place[0] for place in places}]
        for pk, places in ranked.items()
    }
    ids = {completion for completions in rest.values() for completion in completions}
    if not ids:
        return
    rows = Completion.objects.filter(pk__in=ids).values_list("pk", "source_id", Length("text"))
    sources = {pk: (source, length) for pk, source, length in rows}
    for pk, completions in rest.items():
        for completion in completions:
            yield (pk, completion, *sources[completion])


def _pairs(ranked: Iterable[_Place]) -> Iterator[tuple[_Place, _Place]]:
    """Yield every pair of different sources that is ordered or tied, the lower one first."""
    for first, second in combinations(ranked, 2):
        if first[2] != second[2] and not first[1] == second[1] == math.inf:
            yield (first, second) if first[2] < second[2] else (second, first)


def _length_difference(left: int, right: int) -> int:
    total = left + right
    return round((left - right) / total * LENGTH_LEVELS) if total else 0
