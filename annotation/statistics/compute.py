"""Computation of a report. Loads NumPy, so import it when a report is wanted."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from itertools import combinations
from statistics import median
from typing import Any

from django.utils import timezone

from annotation.agreement import records
from annotation.agreement.coefficients import (
    Level,
    alpha_of_sets,
    cohen_kappa,
    fleiss_kappa,
    krippendorff_alpha,
    mean_tau_b,
    percent_agreement,
    position_bias,
    win_share_by_position,
)
from annotation.agreement.estimate import Estimate, Missing, absent
from annotation.agreement.intervals import share_of, share_of_independent
from annotation.agreement.records import Answered, Judged, JudgedSpan, Selection, circles_among
from annotation.agreement.spans import MarkedText, span_matches, unitizing_alpha
from annotation.models import Project
from annotation.record.questions import Question
from annotation.selectors.configuration import configuration_of
from annotation.selectors.judged import (
    answers_in,
    changed_shares_in,
    gold_answered_in,
    judged_in,
    lengths_in,
    project_reliability,
    ratings_in,
    spans_in,
)
from annotation.statistics.distributions import answer_distributions, span_distribution
from annotation.statistics.report import (
    Cost,
    Figure,
    PeopleAgreement,
    Person,
    Report,
    RoundAgreement,
    SharedAgreement,
)

MOST_PAIRS_OF_PEOPLE = 45
"""Pairs of annotators, those who share most, whose agreement is listed."""

_MOST_DAYS = 90

ItemUnits = Mapping[int, records.Units]
"""Comparison → what people said of its pairs: read once, used for several figures."""


def compute_report(project: Project, selection: Selection) -> Report:
    """Every figure of the selected part of a project, computed now."""
    started = time.monotonic()
    everyone = judged_in(project, selection.rounds)
    selected = [judgment for judgment in everyone if selection.is_of(judgment.annotator)]
    items = records.together(everyone, selection)
    units = {pk: records.pair_units(item) for pk, item in items.items()}
    position_items = list(records.by_comparison(selected).values())
    outcomes = [records.position_outcomes(item) for item in position_items]
    figures = _Consistency(project, selection, selected)
    pairs, left_out = _people_pairs(items, units)
    configured = configuration_of(project)
    answers = _answers(project, selection)
    spans = spans_in(project, selection.rounds, category_id=selection.category_id)
    return Report(
        selection=selection,
        computed_at=timezone.now(),
        judgments=len(selected),
        comparisons=len({judgment.comparison for judgment in selected}),
        days=_days(selected),
        hours=_hours(selected),
        cost=_cost(selected),
        agreement=(
            *_pair_figures(items, units, selection),
            *_rating_figures(project, items, selection),
            *_question_figures(project, items, answers),
        ),
        spans=_span_figures(project, items, selection, spans),
        rewrites=_rewrite_figures(project, selected, selection),
        rounds=_by_round(items, units),
        people_pairs=pairs,
        people_pairs_left_out=left_out,
        shared=_shared_agreement(units),
        position=position_bias(outcomes),
        by_position=tuple(win_share_by_position(outcomes)),
        consistency=figures.figures,
        triples=figures.triples,
        circles=figures.circles,
        people=_people(everyone, selected, figures),
        answers=answer_distributions(configured.questions, answers, selected),
        span_counts=span_distribution(configured.categories, spans, selected),
        seconds=time.monotonic() - started,
    )


def _pair_figures(items: records.Items, of_items: ItemUnits, selection: Selection) -> list[Figure]:
    units = list(of_items.values())
    chosen = selection.annotator_ids
    kappa = (
        Figure(key="pair-cohen", estimate=cohen_kappa(units, *chosen), show="disagree")
        if len(chosen) == 2
        else Figure(key="pair-fleiss", estimate=fleiss_kappa(units), show="disagree")
    )

    def alpha(key: str, level: Level, item_units: Iterable[list[list[float]]]) -> Figure:
        return Figure(key=key, estimate=krippendorff_alpha(list(item_units), level), show="disagree")

    every = list(items.values())
    strengths = [records.strength_units(item) for item in every]
    return [
        Figure(key="pair-percent", estimate=percent_agreement(units), show="disagree"),
        kappa,
        alpha("pair-alpha", "nominal", (records.numbers(unit) for unit in units)),
        alpha("verdict-alpha", "nominal", (records.verdict_units(item) for item in every)),
        alpha("strength-ordinal", "ordinal", strengths),
        alpha("strength-interval", "interval", strengths),
        alpha("rank-alpha", "ordinal", (records.rank_units(item) for item in every)),
        Figure(
            key="tau",
            estimate=mean_tau_b([records.rankings(item) for item in every]),
            show="disagree",
        ),
    ]


def _rating_figures(project: Project, items: records.Items, selection: Selection) -> list[Figure]:
    criteria = list(project.criteria.order_by("position", "id"))
    if not criteria:
        return []
    item_of = {judgment.pk: pk for pk, item in items.items() for judgment in item}
    units: dict[int, dict[int, dict[int, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for rated in ratings_in(project, selection.rounds):
        if rated.judgment in item_of:
            ratings = units[rated.criterion][item_of[rated.judgment]]
            ratings[rated.completion].append(float(rated.value))
    figures = []
    levels: tuple[Level, ...] = ("ordinal", "interval")
    for criterion in criteria:
        of_items = [list(by_completion.values()) for by_completion in units[criterion.pk].values()]
        figures += [
            Figure(
                key=f"rating-{level}",
                estimate=krippendorff_alpha(of_items, level),
                criterion=criterion.label,
                show="judged",
            )
            for level in levels
        ]
    return figures


_LEVELS: Mapping[str, tuple[Level, ...]] = {
    "choice": ("nominal",),
    "scale": ("ordinal", "interval"),
    "number": ("interval",),
    "date": ("interval",),
}
"""Levels of Krippendorff's α by the kind of a question. Several choices have MASI, texts have none."""


def _answers(project: Project, selection: Selection) -> list[Answered]:
    """Return the answers to the newest version of each additional question; no query where there is none."""
    versions = {question.key: question.version for question in configuration_of(project).questions}
    return answers_in(project, versions, selection.rounds) if versions else []


def _question_figures(project: Project, items: records.Items, answers: Iterable[Answered]) -> list[Figure]:
    """Return the agreement on each additional question, among answers to its newest version."""
    questions = [q for q in configuration_of(project).questions if q.kind in (*_LEVELS, "choices")]
    if not questions:
        return []
    item_of = {judgment.pk: pk for pk, item in items.items() for judgment in item}
    units: dict[str, dict[int, dict[int | None, list[Any]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for answered in answers:
        if answered.judgment in item_of:
            of_item = units[answered.question][item_of[answered.judgment]]
            of_item[answered.completion].append(answered.value)
    figures = []
    for question in questions:
        of_items = [list(by_completion.values()) for by_completion in units[question.key].values()]
        if question.kind == "choices":
            sets = [[[frozenset(value) for value in unit] for unit in item] for item in of_items]
            figures.append(
                Figure(
                    key="question-sets", estimate=alpha_of_sets(sets), criterion=question.text, show="judged"
                )
            )
            continue
        numbers = [[[_number(question, value) for value in unit] for unit in item] for item in of_items]
        figures += [
            Figure(
                key=f"question-{level}",
                estimate=krippendorff_alpha(numbers, level),
                criterion=question.text,
                show="judged",
            )
            for level in _LEVELS[question.kind]
        ]
    return figures


def _number(question: Question, value: Any) -> float:
    """Return an answer as a number: the place of a choice, the day of a date."""
    if question.kind == "choice":
        return float(question.choice_keys.index(value))
    if question.kind == "date":
        return float(date.fromisoformat(value).toordinal())
    return float(value)


def _span_figures(
    project: Project,
    items: records.Items,
    selection: Selection,
    spans: Mapping[tuple[int, int], Sequence[JudgedSpan]],
) -> tuple[Figure, ...]:
    keys = ["span-alpha", "span-exact", "span-overlap"]
    if selection.category_id is None:
        keys += ["span-category", "span-category-alpha"]
    if not spans:
        is_asked = project.ask_span_flags
        return tuple(Figure(key=key, estimate=absent(Missing.NO_MARKS)) for key in keys if is_asked)
    texts = _marked_texts(items, spans, lengths_in(project, selection.rounds))
    matches = span_matches(texts)
    estimates = [
        unitizing_alpha(texts),
        matches.exact,
        matches.overlapping,
        matches.category,
        matches.category_alpha,
    ]
    return tuple(
        Figure(key=key, estimate=estimate, show="flagged")
        for key, estimate in zip(keys, estimates, strict=False)
    )


def _rewrite_figures(project: Project, judged: Sequence[Judged], selection: Selection) -> tuple[Figure, ...]:
    changed = changed_shares_in(project, selection.rounds)
    if not changed and not project.ask_correction:
        return ()
    counts: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    shares = []
    for judgment in judged:
        changed_shares = changed.get(judgment.pk, [])
        shares += changed_shares
        counts[judgment.comparison][0] += len(changed_shares)
        counts[judgment.comparison][1] += len(judgment.shown)
    length = Estimate(value=median(shares), items=len(shares)) if shares else absent(Missing.NO_DATA)
    rewritten = share_of([(part, whole) for part, whole in counts.values()])
    return (
        Figure(key="rewritten", estimate=rewritten, show="judged"),
        Figure(key="rewritten-part", estimate=length),
    )


def _marked_texts(
    items: records.Items, spans: Mapping[tuple[int, int], Sequence[JudgedSpan]], lengths: Mapping[int, int]
) -> list[MarkedText]:
    """Each completion of each comparison that two or more looked through."""
    return [
        MarkedText(
            item=pk,
            length=lengths[completion],
            marks={judgment.annotator: spans.get((judgment.pk, completion), []) for judgment in item},
        )
        for pk, item in items.items()
        if len(item) > 1
        for completion in item[0].completions
    ]


def _by_round(items: records.Items, of_items: ItemUnits) -> tuple[RoundAgreement, ...]:
    rounds: dict[int, list[records.Units]] = defaultdict(list)
    for pk, item in items.items():
        rounds[item[0].round_number].append(of_items[pk])
    return tuple(
        RoundAgreement(round_number=number, percent=percent_agreement(units), kappa=fleiss_kappa(units))
        for number, units in sorted(rounds.items())
    )


def _people_pairs(items: records.Items, of_items: ItemUnits) -> tuple[tuple[PeopleAgreement, ...], int]:
    """Agreement of those pairs of annotators who share most comparisons, and how many pairs are left out."""
    shared: dict[tuple[int, int], list[int]] = defaultdict(list)
    for pk, item in items.items():
        for pair in combinations(sorted({judgment.annotator for judgment in item}), 2):
            shared[pair].append(pk)
    most = sorted(shared, key=lambda pair: (-len(shared[pair]), pair))[:MOST_PAIRS_OF_PEOPLE]
    return (
        tuple(_two_people(pair, items, of_items, shared[pair]) for pair in most),
        len(shared) - len(most),
    )


def _two_people(
    pair: tuple[int, int], items: records.Items, of_items: ItemUnits, shared: Sequence[int]
) -> PeopleAgreement:
    units = [
        [{pk: unit[pk] for pk in pair if pk in unit} for unit in of_items[comparison]]
        for comparison in shared
    ]
    rankings = [
        records.rankings([judgment for judgment in items[comparison] if judgment.annotator in pair])
        for comparison in shared
    ]
    return PeopleAgreement(
        first=pair[0],
        second=pair[1],
        percent=percent_agreement(units),
        kappa=cohen_kappa(units, *pair),
        tau=mean_tau_b(rankings),
    )


def _shared_agreement(of_items: ItemUnits) -> tuple[SharedAgreement, ...]:
    """Percent agreement of every pair of annotators: mean over the pairs of responses that both judged."""
    alike: Counter[tuple[int, int]] = Counter()
    totals: Counter[tuple[int, int]] = Counter()
    items: Counter[tuple[int, int]] = Counter()
    for units in of_items.values():
        met: set[tuple[int, int]] = set()
        for unit in units:
            people = sorted((int(str(pk)), value) for pk, value in unit.items())
            for (first, first_outcome), (second, second_outcome) in combinations(people, 2):
                totals[first, second] += 1
                alike[first, second] += first_outcome == second_outcome
                met.add((first, second))
        items.update(met)
    return tuple(
        SharedAgreement(first=pair[0], second=pair[1], share=alike[pair] / totals[pair], items=items[pair])
        for pair in sorted(totals)
    )


class _Consistency:
    """Agreement of people with themselves and with known answers."""

    def __init__(self, project: Project, selection: Selection, judged: Sequence[Judged]) -> None:
        self.retests: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for again, same, pairs in records.retest_matches(judged):
            self.retests[again.annotator].append((float(same), float(pairs)))
        self.golds: dict[int, list[bool]] = defaultdict(list)
        for answered in gold_answered_in(project, selection.rounds):
            if selection.is_of(answered.annotator):
                self.golds[answered.annotator].append(answered.right)
        circles = [
            circles_among(decisions.wins, decisions.asked_together)
            for decisions in records.preferences_by_prompt(judged)
            if len(decisions.comparisons) > 1
        ]
        self.triples = sum(prompt_circles.triples for prompt_circles in circles)
        self.circles = sum(len(prompt_circles.cyclic) for prompt_circles in circles)
        self._circle_rows = [
            (float(len(prompt_circles.cyclic)), float(prompt_circles.triples)) for prompt_circles in circles
        ]

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Gold, test-retest and circles over everyone."""
        return (
            Figure(
                key="gold",
                estimate=share_of_independent([right for golds in self.golds.values() for right in golds]),
                show="gold-wrong",
            ),
            Figure(
                key="retest",
                estimate=share_of([row for retests in self.retests.values() for row in retests]),
                show="retest-changed",
            ),
            Figure(key="circles", estimate=share_of(self._circle_rows), show="circles"),
        )


def _people(
    everyone: Sequence[Judged], selected: Sequence[Judged], consistency: _Consistency
) -> tuple[Person, ...]:
    reliabilities = project_reliability(everyone)
    zone = timezone.get_current_timezone()
    by_person: dict[int, list[Judged]] = defaultdict(list)
    for judgment in selected:
        by_person[judgment.annotator].append(judgment)
    people = []
    for pk, judged in sorted(by_person.items()):
        reliability = reliabilities.get(pk)
        people.append(
            Person(
                pk=pk,
                judgments=len(judged),
                median_seconds=_median(judged),
                measured=sum(reading.seconds is not None for reading in judged),
                total_seconds=sum(reading.seconds or 0 for reading in judged),
                active_days=len({reading.at.astimezone(zone).date() for reading in judged}),
                last_at=max(reading.at for reading in judged),
                reliability=absent(Missing.NO_DATA)
                if reliability is None
                else Estimate(
                    value=reliability.value,
                    low=reliability.low,
                    high=reliability.high,
                    items=reliability.shared_pairs,
                )
                if reliability.shared_pairs
                else absent(Missing.NOBODY_SHARED),
                gold=share_of_independent(consistency.golds.get(pk, [])),
                retest=share_of(consistency.retests.get(pk, [])),
            )
        )
    return tuple(people)


def _cost(judged: Sequence[Judged]) -> Cost:
    seconds = [judgment.seconds for judgment in judged if judgment.seconds is not None]
    comparisons = {judgment.comparison for judgment in judged if judgment.seconds is not None}
    return Cost(
        judgments=len(judged),
        measured=len(seconds),
        total_seconds=sum(seconds),
        median_seconds=_median(judged),
        seconds_per_item=sum(seconds) / len(comparisons) if comparisons else None,
    )


def _median(judged: Sequence[Judged]) -> float | None:
    seconds = [judgment.seconds for judgment in judged if judgment.seconds is not None]
    return float(median(seconds)) if seconds else None


def _days(judged: Sequence[Judged]) -> tuple[tuple[date, int], ...]:
    """Judgments a day, without gaps, for the last days on which there were any."""
    zone = timezone.get_current_timezone()
    counted = Counter(judgment.at.astimezone(zone).date() for judgment in judged)
    if not counted:
        return ()
    last = max(counted)
    first = max(min(counted), last - timedelta(days=_MOST_DAYS - 1))
    days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    return tuple((day, counted[day]) for day in days)


def _hours(judged: Sequence[Judged]) -> tuple[int, ...]:
    zone = timezone.get_current_timezone()
    counted = Counter(judgment.at.astimezone(zone).hour for judgment in judged)
    return tuple(counted[hour] for hour in range(24))
