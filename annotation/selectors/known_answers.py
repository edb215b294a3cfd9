"""Comparison of annotations with the known answers of gold and qualification items. Reads only."""

import string
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from annotation.agreement.records import outcome_between
from annotation.choices import AssignmentState, Purpose, Verdict
from annotation.models import Assignment, GoldAnswer, Judgment
from annotation.text.orders import with_rest


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldOutcome:
    """Outcome of one judgment of a gold item, and the reason."""

    right: bool
    explanation: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Feedback:
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


def feedback_for(assignment: Assignment) -> Feedback | None:
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
    return Feedback(
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
