"""Judges of a project, and their agreement with people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from django.db.models import Count, Exists, OuterRef, Q

from annotation.agreement.coefficients import (
    Outcomes,
    cohen_kappa,
    krippendorff_alpha,
    percent_agreement,
    position_bias,
)
from annotation.agreement.estimate import Estimate, PositionBias
from annotation.agreement.intervals import share_of_independent
from annotation.agreement.records import outcome_between
from annotation.agreement.reliability import AlternativeAnnotator, Item, alternative_annotator
from annotation.choices import AssignmentState, Split, Verdict
from annotation.models import (
    Assignment,
    Comparison,
    CompletionScore,
    Judgment,
    Project,
    RankedCompletion,
    Rating,
    RubricCriterion,
    RubricScore,
)
from annotation.selectors.access import judgments_current
from training.models import Checkpoint, EvaluatedPrompt, Judge, JudgeVerdict

# ── Agreement with people by criterion ──


Values = Mapping[int, Mapping[int, Sequence[float]]]
"""Comparison → completion → what people gave it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CriterionAgreement:
    """A judge's scores by one criterion against people's ratings of the same responses."""

    criterion: RubricCriterion
    alpha: Estimate
    """Krippendorff's α, ordinal, over pairs of the judge and a person; the interval resamples comparisons."""
    among_people: Estimate
    """The same of people with each other, on the comparisons that the judge scored."""
    responses: int
    """Responses that both the judge and a person scored."""
    difference: float | None
    """Mean of the judge's score less a person's rating: above 0 it is more lenient. None without data."""


def criteria_agreement(judge: Judge, judgments: Sequence[int]) -> tuple[CriterionAgreement, ...]:
    """Return the agreement for each criterion of the judge's rubric, over these of its judgments.

    A person's rating is by the criterion of the same key, so of the same name, text and scale.
    """
    if judge.rubric is None:
        return ()
    scores: dict[str, dict[tuple[int, int], float]] = defaultdict(dict)
    rows = RubricScore.objects.filter(judgment__in=judgments).values_list(
        "criterion__key", "judgment__comparison_id", "completion_id", "value"
    )
    for key, comparison, completion, value in rows:
        scores[key][comparison, completion] = value
    criteria = list(judge.rubric.criteria.all())
    people = _ratings(judge, judgments, [criterion.key for criterion in criteria])
    return tuple(
        _agreement(criterion, scores[criterion.key], people[criterion.key]) for criterion in criteria
    )


def _ratings(judge: Judge, judgments: Sequence[int], keys: Sequence[str]) -> Mapping[str, Values]:
    """Return people's current ratings of the comparisons of these judgments, by criterion key."""
    comparisons = RubricScore.objects.filter(judgment__in=judgments).values("judgment__comparison_id")
    current = (
        judgments_current(judge.project)
        .filter(comparison__in=comparisons)
        .select_related(None)
        .prefetch_related(None)
        .order_by()
        .values("pk")
    )
    ratings: dict[str, dict[int, dict[int, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    rows = Rating.objects.filter(judgment__in=current, criterion__key__in=keys).values_list(
        "criterion__key", "judgment__comparison_id", "completion_id", "value"
    )
    for key, comparison, completion, value in rows:
        ratings[key][comparison][completion].append(float(value))
    return ratings


def _agreement(
    criterion: RubricCriterion, scores: Mapping[tuple[int, int], float], people: Values
) -> CriterionAgreement:
    items = [
        [
            (scores[comparison, completion], rating)
            for completion, ratings in rated.items()
            if (comparison, completion) in scores
            for rating in ratings
        ]
        for comparison, rated in people.items()
    ]
    pairs = [pair for item in items for pair in item]
    among = [list(rated.values()) for rated in people.values()]
    return CriterionAgreement(
        criterion=criterion,
        alpha=krippendorff_alpha(items, "ordinal"),
        among_people=krippendorff_alpha(among, "ordinal"),
        responses=sum(
            (comparison, completion) in scores for comparison, rated in people.items() for completion in rated
        ),
        difference=fmean(score - rating for score, rating in pairs) if pairs else None,
    )


# ── Judges ──


NEWEST = 5000
"""Number of a judge's newest judgments that are analysed."""

_JUDGE, _PERSON = "judge", "person"
Ranks = Mapping[int, float]
"""Places by response; the lower one is better."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeReport:
    """The figures of a judge over its newest judgments."""

    judged: int
    """Total judgments."""
    verdicts: Mapping[str, int]
    skipped: int
    """Comparisons whose text its server refused."""
    shared: int
    """Comparisons that people have judged too."""
    agreement: Estimate
    """Share of pairs of answers with the same verdict as a person's: better, worse or equal."""
    kappa: Estimate
    """Cohen's κ of the judge against people: agreement corrected for chance."""
    among_people: Estimate
    """Percent agreement among people on the same comparisons: a bound for the judge's."""
    stand_in: AlternativeAnnotator
    """Whether it may stand in for a person at all."""
    position: PositionBias
    """Share of pairs decided within one order that the answer shown earlier won."""
    same_in_all_orders: Estimate
    """Share of comparisons on which every order led to the same ranking."""
    criteria: tuple[CriterionAgreement, ...]
    """Agreement with people by criterion of its rubric; empty without one."""


def report_of(judge: Judge) -> JudgeReport:
    """Return a judge's figures, in a fixed number of queries."""
    newest = list(
        Judgment.objects.filter(annotator=judge.user_id)
        .order_by("-pk")
        .values_list("pk", "comparison_id")[:NEWEST]
    )
    rankings = _ranks([pk for pk, _ in newest])
    by_comparison = {comparison: rankings.get(pk, {}) for pk, comparison in newest}
    people = _rankings_by_people(judge.project, list(by_comparison))
    items = [_units(by_comparison[comparison], [*others.values()]) for comparison, others in people.items()]
    verdicts = list(
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
        among_people=percent_agreement(
            [
                _units_of_all([*others.values()], by_comparison[comparison])
                for comparison, others in people.items()
            ]
        ),
        stand_in=alternative_annotator(
            [
                item
                for comparison, others in people.items()
                for item in _items_for_stand_in(by_comparison[comparison], others)
            ]
        ),
        position=position_bias([_by_place(replies) for replies, _ in verdicts]),
        same_in_all_orders=share_of_independent([agree for _, agree in verdicts]),
        criteria=criteria_agreement(judge, [pk for pk, _ in newest]),
    )


def _ranks(judgments: Sequence[int]) -> dict[int, dict[int, int]]:
    ranks: dict[int, dict[int, int]] = defaultdict(dict)
    rows = RankedCompletion.objects.filter(judgment__in=judgments)
    for judgment, completion, rank in rows.values_list("judgment_id", "completion_id", "rank"):
        ranks[judgment][completion] = rank
    return ranks


def stand_in_by_scores(reward_model: Checkpoint) -> AlternativeAnnotator:
    """Return whether a reward model may stand in for a person, by the comparisons that it did not learn from
    and whose responses it has scored: those of held-out prompts, and those of later rounds."""
    if reward_model.project is None:
        return alternative_annotator([])
    unseen = Q(prompt__split=Split.HELD_OUT)
    if (run := reward_model.run) is not None:
        unseen |= Q(round_number__gt=max(run.snapshot.rounds))
    # By the comparison: to count people over all judgments of a large project takes seconds.
    several = (
        Comparison.objects.filter(unseen, project=reward_model.project, overlap__gt=1)
        .filter(Exists(Judgment.objects.filter(comparison=OuterRef("pk"))))
        .order_by("-pk")
        .values_list("pk", flat=True)[:NEWEST]
    )
    people = _rankings_by_people(reward_model.project, list(several))
    scores = _scores_by(reward_model, [pk for by_person in people.values() for pk in _ranked(by_person)])
    return alternative_annotator(
        [
            item
            for by_person in people.values()
            for item in _items_for_stand_in(
                # The greater score has the lower rank.
                {pk: -scores[pk] for pk in _ranked(by_person) if pk in scores},
                by_person,
            )
        ]
    )


def _ranked(by_person: Mapping[int, Ranks]) -> set[int]:
    return {pk for ranks in by_person.values() for pk in ranks}


def _scores_by(reward_model: Checkpoint, completions: Sequence[int]) -> dict[int, float]:
    """Return the reward model's scores of responses, those of evaluations among them."""
    scorings = CompletionScore.objects.filter(scorer=reward_model.name, completion__in=completions)
    scores = dict(scorings.values_list("completion_id", "value"))
    evaluated = EvaluatedPrompt.objects.filter(evaluation__reward_model=reward_model)
    for old, new, figures in evaluated.values_list("old_id", "new_id", "figures"):
        if (pair := figures.get("reward")) is not None:
            scores |= zip((old, new), pair, strict=True)
    return scores


def _rankings_by_people(project: Project, comparisons: Sequence[int]) -> dict[int, dict[int, Ranks]]:
    """Return people's rankings of these comparisons, by comparison and person."""
    current = (
        judgments_current(project)
        .filter(comparison__in=comparisons)
        .select_related(None)
        .prefetch_related(None)
        .values_list("pk", "comparison_id", "annotator_id")
    )
    ranks = _ranks([pk for pk, _, _ in current])
    rankings: dict[int, dict[int, Ranks]] = defaultdict(dict)
    for pk, comparison, annotator in current:
        rankings[comparison][annotator] = ranks.get(pk, {})
    return rankings


def _items_for_stand_in(by_judge: Ranks, people: Mapping[int, Ranks]) -> list[Item]:
    """Return an item for each pair of responses that the judge ordered, with each person's verdict."""
    return [
        (
            judged,
            {
                person: said
                for person, ranks in people.items()
                if (said := outcome_between(ranks, *pair)) is not None
            },
        )
        for pair in combinations(sorted(by_judge), 2)
        if (judged := outcome_between(by_judge, *pair)) is not None
    ]


def _units(by_judge: Ranks, people: Sequence[Ranks]) -> list[dict[str, int]]:
    """Return the verdicts of judge and person, for each person and pair that both ordered."""
    return [
        {_JUDGE: judged, _PERSON: said}
        for person in people
        for pair in combinations(sorted(by_judge.keys() | person.keys()), 2)
        if (judged := outcome_between(by_judge, *pair)) is not None
        and (said := outcome_between(person, *pair)) is not None
    ]


def _units_of_all(people: Sequence[Ranks], by_judge: Ranks) -> list[dict[int, int]]:
    """Return each person's verdict for each pair of answers. The judge, who ranks all, names them."""
    answers = sorted({pk for ranks in (*people, by_judge) for pk in ranks})
    return [
        {
            number: outcome
            for number, person in enumerate(people)
            if (outcome := outcome_between(person, *pair)) is not None
        }
        for pair in combinations(answers, 2)
    ]


def _by_place(replies: Sequence[Mapping[str, object]]) -> Outcomes:
    """Return every pair of every order that was read: (earlier place, later place, winner)."""
    outcomes = []
    for reply in replies:
        order, ranks = reply["order"], reply["ranks"]
        if not isinstance(order, list) or not isinstance(ranks, dict):
            continue
        placed = [int(ranks[str(pk)]) for pk in order]
        outcomes += [
            (early, late, (placed[late] > placed[early]) - (placed[late] < placed[early]))
            for early, late in combinations(range(len(placed)), 2)
        ]
    return outcomes
