"""Disputed gold: known answers that annotators gave and that a group of annotators consistently rejects.

Gold made of agreement is the answer of whoever was asked, which a minority that prefers otherwise gets wrong
each time. Such an item says nothing about the care of its members, so it does not count for them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from django.db.models import Exists, OuterRef

from annotation.choices import Purpose
from annotation.models import Comparison, GoldAnswer, Judgment, Project
from annotation.selectors.known_answers import agrees_with_known
from annotation.selectors.membership import groups_of_annotators

FEWEST_OPPONENTS = 2
"""Members of a group from which on the same other answer is that of the group: one alone may be careless."""

Answer = tuple[str, tuple[tuple[int, int], ...]]


class Disputes:
    """The disputed gold items of a project, by group of annotators."""

    def __init__(self, groups: dict[int, str], items: set[tuple[int, str]]) -> None:
        self._groups = groups
        self._items = items

    def concerns(self, annotator: int, comparison: int) -> bool:
        """Return True where the annotator's group disputes the known answer of this item."""
        return (comparison, self._groups.get(annotator, "")) in self._items

    def groups_against(self, comparison: int) -> list[str]:
        """Return the groups that dispute the known answer of an item, by name."""
        return sorted(group for item, group in self._items if item == comparison)


class _First(NamedTuple):
    comparison: int
    annotator: int
    answer: Answer
    agrees: bool


def disputes_in(project: Project, comparisons: Iterable[int] | None = None) -> Disputes:
    """Return the disputed gold of a project, or of some of its comparisons. Five queries, one without groups.

    A group disputes an item whose known answer is the agreement of annotators if more than half of its
    members who answered, and two at least, gave one and the same answer that contradicts it. Answers that a
    manager wrote or a reviewer decided are never disputed.
    """
    members = project.memberships.exclude(group="").values_list("user_id", flat=True)
    groups = groups_of_annotators(project, members)
    if not groups:
        return Disputes({}, set())
    answers: dict[tuple[int, str], list[_First]] = defaultdict(list)
    for first in _first_answers(project, groups.keys(), comparisons):
        answers[first.comparison, groups[first.annotator]].append(first)
    return Disputes(groups, {key for key, group_answers in answers.items() if _is_rejected(group_answers)})


def _is_rejected(answers: list[_First]) -> bool:
    """Return True where most of a group's answers are the same one, against the known answer."""
    against = Counter(answer.answer for answer in answers if not answer.agrees)
    most = max(against.values(), default=0)
    return most >= FEWEST_OPPONENTS and 2 * most > len(answers)


def _first_answers(
    project: Project, annotators: Iterable[int], comparisons: Iterable[int] | None
) -> list[_First]:
    """Return first answers of annotators to items whose known answer is the agreement of annotators."""
    # Gold of agreement is made of work that is still there and that no reviewer decided.
    work = Comparison.objects.filter(
        project=project,
        purpose=Purpose.WORK,
        completion_set=OuterRef("comparison__completion_set"),
        round_number=OuterRef("comparison__round_number"),
    )
    known = GoldAnswer.objects.filter(
        Exists(work), ~Exists(work.filter(review__decided_at__isnull=False)), comparison__project=project
    )
    if comparisons is not None:
        known = known.filter(comparison__in=list(comparisons))
    by_comparison = {answer.comparison_id: answer for answer in known.select_related("comparison")}
    firsts = Judgment.objects.filter(
        comparison__in=by_comparison,
        annotator__in=list(annotators),
        assignment__retest_of__isnull=True,
        supersedes__isnull=True,
    ).prefetch_related("ranks")
    answers = []
    for judgment in firsts:
        ranks = {place.completion_id: place.rank for place in judgment.ranks.all()}
        answers.append(
            _First(
                comparison=judgment.comparison_id,
                annotator=judgment.annotator_id,
                answer=(judgment.verdict, tuple(sorted(ranks.items()))),
                agrees=agrees_with_known(
                    by_comparison[judgment.comparison_id], verdict=judgment.verdict, ranks=ranks
                ),
            )
        )
    return answers
