"""How far a judge agrees with people, and whether it leans to a place. Loads NumPy where imported."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from django.db.models import Count

from annotation.agreement.estimate import Estimate, PositionBias
from annotation.agreement.pairs import cohen_kappa, percent_agreement
from annotation.agreement.position import Outcomes, position_bias
from annotation.agreement.shares import share_of_independent
from annotation.choices import AssignmentState, Verdict
from annotation.models import Assignment, Judgment, RankedCompletion
from annotation.selectors import judgments_current
from training.models import Judge, JudgeVerdict

NEWEST = 5000
"""So many of a judge's newest judgments are looked at."""

_JUDGE, _PERSON = "judge", "person"
Ranks = Mapping[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeReport:
    """One judge in figures, over its newest judgments."""

    judged: int
    """Judgments in all."""
    verdicts: Mapping[str, int]
    skipped: int
    """Comparisons whose text its server refused."""
    shared: int
    """Comparisons that people have judged too."""
    agreement: Estimate
    """Share of pairs of answers of which it says what a person says: better, worse or equal."""
    kappa: Estimate
    """The same less what chance gives: Cohen's κ of the judge against people."""
    among_people: Estimate
    """Percent agreement of people with each other on the same comparisons: what one can hope for."""
    position: PositionBias
    """Of the pairs it decided within one order: how often the answer shown earlier won."""
    same_in_all_orders: Estimate
    """Share of comparisons on which every order led to the same ranking."""


def report_of(judge: Judge) -> JudgeReport:
    """A judge in figures. Some queries, however much it judged."""
    newest = list(
        Judgment.objects.filter(annotator=judge.user_id)
        .order_by("-pk")
        .values_list("pk", "comparison_id")[:NEWEST]
    )
    said = _ranks([pk for pk, _ in newest])
    by_comparison = {comparison: said.get(pk, {}) for pk, comparison in newest}
    people = _said_by_people(judge, list(by_comparison))
    items = [_units(by_comparison[comparison], others) for comparison, others in people.items()]
    told = list(
        JudgeVerdict.objects.filter(judgment__in=[pk for pk, _ in newest]).values_list(
            "replies", "orders_agree"
        )
    )
    counted = Judgment.objects.filter(annotator=judge.user_id).values_list("verdict")
    by_verdict = dict(counted.annotate(times=Count("pk")).order_by("verdict"))
    skipped = Assignment.objects.filter(annotator=judge.user_id, state=AssignmentState.SKIPPED)
    return JudgeReport(
        judged=sum(by_verdict.values()),
        verdicts={str(Verdict(verdict).label): times for verdict, times in by_verdict.items()},
        skipped=skipped.count(),
        shared=len(people),
        agreement=percent_agreement(items),
        kappa=cohen_kappa(items, _JUDGE, _PERSON),
        among_people=percent_agreement([_units_of_all(others) for others in people.values()]),
        position=position_bias([_by_place(replies) for replies, _ in told]),
        same_in_all_orders=share_of_independent([agree for _, agree in told]),
    )


def _ranks(judgments: Sequence[int]) -> dict[int, dict[int, int]]:
    found: dict[int, dict[int, int]] = defaultdict(dict)
    rows = RankedCompletion.objects.filter(judgment__in=judgments)
    for judgment, completion, rank in rows.values_list("judgment_id", "completion_id", "rank"):
        found[judgment][completion] = rank
    return found


def _said_by_people(judge: Judge, comparisons: Sequence[int]) -> dict[int, list[Ranks]]:
    """What people said of these comparisons: one ranking for each person."""
    current = (
        judgments_current(judge.project)
        .filter(comparison__in=comparisons)
        .select_related(None)
        .prefetch_related(None)
        .values_list("pk", "comparison_id")
    )
    of = dict(current)
    ranks = _ranks(list(of))
    found: dict[int, list[Ranks]] = defaultdict(list)
    for pk, comparison in of.items():
        found[comparison].append(ranks.get(pk, {}))
    return found


def _units(by_judge: Ranks, people: Sequence[Ranks]) -> list[dict[str, int]]:
    """For each person and each pair of answers that both ranked: what the judge and what the person said."""
    return [
        {_JUDGE: _outcome(by_judge, pair), _PERSON: _outcome(person, pair)}
        for person in people
        for pair in combinations(sorted(by_judge.keys() & person.keys()), 2)
    ]


def _units_of_all(people: Sequence[Ranks]) -> list[dict[int, int]]:
    """For each pair of answers what each person said who ranked both."""
    answers = sorted({pk for person in people for pk in person})
    return [
        {
            number: _outcome(person, pair)
            for number, person in enumerate(people)
            if pair[0] in person and pair[1] in person
        }
        for pair in combinations(answers, 2)
    ]


def _outcome(ranks: Ranks, pair: tuple[int, int]) -> int:
    left, right = ranks[pair[0]], ranks[pair[1]]
    return (right > left) - (right < left)


def _by_place(replies: Sequence[Mapping[str, object]]) -> Outcomes:
    """Every pair of every order that was read: (earlier place, later place, who won)."""
    found = []
    for reply in replies:
        order, ranks = reply["order"], reply["ranks"]
        if not isinstance(order, list) or not isinstance(ranks, dict):
            continue
        placed = [int(ranks[str(pk)]) for pk in order]
        found += [
            (early, late, (placed[late] > placed[early]) - (placed[late] < placed[early]))
            for early, late in combinations(range(len(placed)), 2)
        ]
    return found
