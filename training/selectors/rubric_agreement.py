"""Agreement of a rubric judge with people, criterion by criterion. Loads NumPy where imported."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from annotation.agreement.coefficients import krippendorff_alpha
from annotation.agreement.estimate import Estimate
from annotation.models import Rating, RubricCriterion, RubricScore
from annotation.selectors.access import judgments_current
from training.models import Judge

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
