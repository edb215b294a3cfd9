"""Comparison of annotations with the known answers of gold and qualification items. Reads only."""

import string
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from django.db.models import Exists, OuterRef

from annotation.agreement.records import outcome_between
from annotation.choices import AssignmentState, Purpose, Verdict
from annotation.models import Assignment, Comparison, GoldAnswer, Judgment, Project
from annotation.selectors.allocation import groups_of_annotators
from annotation.text.identity import with_rest


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldOutcome:
    """Outcome of one judgment of a gold item, and the reason."""

    right: bool
    explanation: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldFeedback:
    """Feedback on a gold item, in the letters of the page that the annotator saw."""

    right: bool
    verdict: Verdict
    ranks: dict[str, int]
    """Letter → rank, in the order of the page; empty where the known answer is “cannot judge”."""
    ranking: str
    """The known order, such as “B > A = C”; empty where no answer wins."""
    explanation: str


def gold_outcome(judgment: Judgment) -> GoldOutcome:
    """Return True where a judgment agrees with the known answer of its comparison.

    Right is: a known verdict without winner is met exactly; a known ranking is met when every pair
    that it decides is decided the same way. Ties in the known ranking leave the pair open, and so does a
    known ranking that orders neither of two. Who leaves both without an order has not decided the pair.
    """
    known = judgment.comparison.gold_answer
    ranks = {place.completion_id: place.rank for place in judgment.ranks.all()}
    return GoldOutcome(
        right=agrees_with_known(known, verdict=judgment.verdict, ranks=ranks),
        explanation=known.explanation,
    )


def agrees_with_known(known: GoldAnswer, *, verdict: str, ranks: Mapping[int, int]) -> bool:
    """Return True where this answer agrees with the known one; see `gold_outcome`."""
    if known.verdict != Verdict.RANKED or verdict != Verdict.RANKED:
        return verdict == known.verdict
    expected = known_ranks(known)
    completions = expected.keys() | ranks.keys()
    if expected.keys() - ranks.keys() and known.comparison.size > len(completions):
        # Below them is a completion that neither orders: the known answer decides that pair.
        return False
    return all(
        outcome_between(ranks, left, right) == outcome
        for left, right in combinations(completions, 2)
        if (outcome := outcome_between(expected, left, right))
    )


def known_ranks(known: GoldAnswer) -> dict[int, int]:
    """Completion id → rank of a known answer."""
    return {int(pk): rank for pk, rank in known.ranks.items()}


def first_judgment(assignment: Assignment) -> Judgment | None:
    """Return the first judgment: a later one may rest on feedback, so this one counts for quality."""
    return assignment.judgments.filter(supersedes__isnull=True).first()


def feedback_for(assignment: Assignment) -> GoldFeedback | None:
    """Return the feedback after a gold item; None for all else, or where the project gives none.

    It speaks of the first answer: one that is changed after this feedback proves nothing.
    """
    comparison = assignment.comparison
    if comparison.purpose == Purpose.WORK or assignment.state != AssignmentState.SUBMITTED:
        return None
    if not comparison.project.gold_feedback:
        return None
    judgment = first_judgment(assignment)
    known = GoldAnswer.objects.filter(comparison=comparison).first()
    if judgment is None or known is None:
        return None
    ranks = _by_letter(assignment, known)
    return GoldFeedback(
        right=gold_outcome(judgment).right,
        verdict=Verdict(known.verdict),
        ranks=ranks,
        ranking=_ranking(assignment, ranks) if known.verdict == Verdict.RANKED else "",
        explanation=known.explanation,
    )


def _by_letter(assignment: Assignment, known: GoldAnswer) -> dict[str, int]:
    ranks = known_ranks(known)
    letters = zip(string.ascii_uppercase, assignment.display_order, strict=False)
    return {letter: ranks[pk] for letter, pk in letters if pk in ranks}


def _ranking(assignment: Assignment, ranks: Mapping[str, int]) -> str:
    tiers = [
        [letter for letter, rank in ranks.items() if rank == tier] for tier in sorted(set(ranks.values()))
    ]
    letters = string.ascii_uppercase[: len(assignment.display_order)]
    rest = [letter for letter in letters if letter not in ranks]
    return with_rest(" > ".join(" = ".join(tier) for tier in tiers), rest)


# Disputed gold: known answers that annotators gave and that a group of annotators consistently rejects.
#
# Gold made of agreement is the answer of whoever was asked, which a minority that prefers otherwise gets
# wrong
# each time. Such an item says nothing about the care of its members, so it does not count for them.

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
