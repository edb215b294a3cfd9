"""Computation of a report. Loads NumPy, so import it when a report is wanted."""

import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from itertools import combinations
from math import sqrt
from statistics import fmean, median
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
from annotation.agreement.intervals import share_of, share_of_independent, wilson_interval
from annotation.agreement.records import Answered, Judged, JudgedSpan, Rated, Selection, circles_among
from annotation.agreement.spans import MarkedText, span_matches, unitizing_alpha
from annotation.choices import CategoryScope
from annotation.models import Category, Project
from annotation.record.questions import CHOSEN_KINDS, Question
from annotation.selectors.configuration import configuration_of, in_groups
from annotation.selectors.judged import (
    answers_in,
    changed_shares_in,
    gold_answered_in,
    judged_in,
    lengths_in,
    project_reliability,
    ratings_in,
    relations_in,
    shown_lengths,
    spans_in,
)
from annotation.statistics.report import (
    MEASURED,
    Cost,
    Distribution,
    Figure,
    Option,
    PeopleAgreement,
    Person,
    Report,
    RoundAgreement,
    SharedAgreement,
    Spread,
)

MOST_PAIRS_OF_PEOPLE = 45
"""Pairs of annotators, those who share most, whose agreement is listed."""

_MOST_DAYS = 90

RECENT = 50
"""Newest measured annotations that the pace of a person is read from."""
FEWEST_MEASURED = 10
"""With fewer of them nothing is said of a person's pace."""
RECENT_SHARED = 30
"""Newest shared comparisons that are compared with those before."""
RECENT_GOLD = 15
"""Newest gold answers that are compared with those before."""
CHARACTERS_A_SECOND = 60
"""About 600 English words a minute; adults read 238 silently (Brysbaert 2019)."""

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
            *rating_figures(project, items, ratings_in(project, selection.rounds)),
            *question_figures(project, items, answers),
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
        people=_people(everyone, selected, figures, units),
        answers=answer_distributions(configured.questions, answers, selected),
        span_counts=span_distribution(configured.categories, spans, selected),
        relation_counts=relation_distribution(
            configured.categories, relations_in(project, selection.rounds), selected
        ),
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


def rating_figures(project: Project, items: records.Items, ratings: Iterable[Rated]) -> list[Figure]:
    """Return the agreement on each criterion."""
    criteria = list(project.criteria.order_by("position", "id"))
    if not criteria:
        return []
    item_of = {judgment.pk: pk for pk, item in items.items() for judgment in item}
    units: dict[int, dict[int, dict[int, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for rated in ratings:
        if rated.judgment in item_of:
            of_item = units[rated.criterion][item_of[rated.judgment]]
            of_item[rated.completion].append(float(rated.value))
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


def question_figures(project: Project, items: records.Items, answers: Iterable[Answered]) -> list[Figure]:
    """Return the agreement on each additional question, among answers to its newest version.

    A unit is what was asked of: one about spans only where annotators marked the same span.
    """
    questions = [q for q in configuration_of(project).questions if q.kind in (*_LEVELS, "choices")]
    if not questions:
        return []
    item_of = {judgment.pk: pk for pk, item in items.items() for judgment in item}
    units: dict[str, dict[int, dict[Hashable, list[Any]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for answered in answers:
        if answered.judgment in item_of:
            of_item = units[answered.question][item_of[answered.judgment]]
            of_item[answered.about].append(answered.value)
    figures = []
    for question in questions:
        of_items = [list(by_subject.values()) for by_subject in units[question.key].values()]
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
    return _measured(question.kind, value)


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
    everyone: Sequence[Judged], selected: Sequence[Judged], consistency: _Consistency, units: ItemUnits
) -> tuple[Person, ...]:
    reliabilities = project_reliability(everyone)
    zone = timezone.get_current_timezone()
    by_person: dict[int, list[Judged]] = defaultdict(list)
    for judgment in selected:
        by_person[judgment.annotator].append(judgment)
    # Who has read the texts before needs less time: retests and revisions are left out.
    measured = {
        pk: [
            one for one in judged if one.seconds is not None and one.retest_of is None and not one.is_revision
        ][-RECENT:]
        for pk, judged in by_person.items()
    }
    lengths = shown_lengths({pk for judged in measured.values() for one in judged for pk in one.shown})
    people = []
    for pk, judged in sorted(by_person.items()):
        reliability = reliabilities.get(pk)
        people.append(
            Person(
                pk=pk,
                judgments=len(judged),
                median_seconds=_median(judged),
                measured=sum(reading.seconds is not None for reading in judged),
                in_bulk=sum(reading.in_bulk for reading in judged),
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
                recent_seconds=_median(measured[pk]) if len(measured[pk]) >= FEWEST_MEASURED else None,
                unread=_unread(measured[pk], lengths),
                agreement_change=change_of(_agreement_by_time(pk, judged, units), recent=RECENT_SHARED),
                gold_change=change_of(
                    [float(right) for right in consistency.golds.get(pk, [])], recent=RECENT_GOLD
                ),
            )
        )
    return tuple(people)


def _unread(measured: Sequence[Judged], lengths: Mapping[int, int]) -> Estimate:
    """Return the share of annotations that took less time than reading their responses takes.

    Those with a trace are left out: nobody reads every step of one.
    """
    read = [one for one in measured if all(pk in lengths for pk in one.shown)]
    if len(read) < FEWEST_MEASURED:
        return absent(Missing.TOO_FEW, items=len(read))
    return share_of_independent(
        [(one.seconds or 0) < sum(lengths[pk] for pk in one.shown) / CHARACTERS_A_SECOND for one in read]
    )


def _agreement_by_time(person: int, judged: Sequence[Judged], units: ItemUnits) -> list[float]:
    """Return how far a person agrees with others in each shared comparison, 0 to 1, the oldest first."""
    shares = []
    for judgment in judged:
        if not judgment.is_first_work:
            continue
        alike = [
            outcome == unit[person]
            for unit in units.get(judgment.comparison, ())
            if person in unit
            for other, outcome in unit.items()
            if other != person
        ]
        if alike:
            shares.append(sum(alike) / len(alike))
    return shares


def change_of(shares: Sequence[float], *, recent: int) -> Estimate:
    """Return the mean of the newest `recent` shares less that of those before, with a 95 % interval.

    The interval is Newcombe's of a difference of two shares (1998, method 10). Absent with fewer than
    `recent` on either side.
    """
    before, after = shares[:-recent], shares[-recent:]
    if len(before) < recent:
        return absent(Missing.TOO_FEW, items=len(shares))
    old, new = sum(before) / len(before), sum(after) / len(after)
    old_low, old_high = wilson_interval(sum(before), len(before))
    new_low, new_high = wilson_interval(sum(after), len(after))
    return Estimate(
        value=new - old,
        low=new - old - sqrt((new - new_low) ** 2 + (old_high - old) ** 2),
        high=new - old + sqrt((new_high - new) ** 2 + (old - old_low) ** 2),
        items=len(shares),
    )


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


# Distributions: how often each choice, point or category was given, by everybody and by each annotator.


def answer_distributions(
    questions: Sequence[Question], answers: Iterable[Answered], judged: Iterable[Judged]
) -> tuple[Distribution, ...]:
    """Return the answers to each question in its newest version. One without an answer has none."""
    annotators = {judgment.pk: judgment.annotator for judgment in judged}
    given: dict[str, list[tuple[int, Any]]] = {}
    for answered in answers:
        if answered.judgment in annotators:
            given.setdefault(answered.question, []).append((annotators[answered.judgment], answered.value))
    return tuple(
        _of_question(question, given[question.key]) for question in questions if question.key in given
    )


def span_distribution(
    categories: Iterable[Category],
    spans: Mapping[tuple[int, int], Sequence[JudgedSpan]],
    judged: Iterable[Judged],
) -> Distribution | None:
    """Return the spans by category, sub-categories behind theirs; None without a span.

    A category above others counts their spans, too.
    """
    annotators = {judgment.pk: judgment.annotator for judgment in judged}
    rows = in_groups(categories)
    parents = {row.pk: row.parent_id for row in rows}
    given: list[tuple[int, tuple[int, ...]]] = []
    for (judgment, _completion), marks in spans.items():
        if judgment in annotators:
            for mark in marks:
                parent = parents.get(mark.category)
                named = (mark.category,) if parent is None else (mark.category, parent)
                given.append((annotators[judgment], named))
    if not given:
        return None
    used = {pk for _annotator, named in given for pk in named}
    shown = [
        row for row in rows if row.scope == CategoryScope.SPAN and (row.pk in used or not row.is_archived)
    ]
    options = tuple(
        Option(
            key=row.key,
            label=row.signed_label if row.parent is None else row.label,
            is_part=row.parent is not None,
        )
        for row in shown
    )
    places = [row.pk for row in shown]
    return _distribution("spans", "", "spans", options, places, given, lambda named: named)


def relation_distribution(
    categories: Iterable[Category], relations: Iterable[tuple[int, str, str, str]], judged: Iterable[Judged]
) -> Distribution | None:
    """Return how often spans are something to others, by categories, the most frequent first; None if never.

    relations: as `relations_in` returns them. An option's key has the kind between the categories.
    """
    annotators = {judgment.pk: judgment.annotator for judgment in judged}
    given = [(annotators[pk], tuple(named)) for pk, *named in relations if pk in annotators]
    if not given:
        return None
    labels = {row.key: row.label for row in categories}
    counted = Counter(named for _annotator, named in given)
    places = sorted(counted, key=lambda named: (-counted[named], named))
    options = tuple(
        Option(
            key=" ".join(named),
            label=f"{labels.get(named[0], named[0])} → {labels.get(named[2], named[2])}",
            is_part=False,
        )
        for named in places
    )
    return _distribution("relations", "", "relations", options, places, given, lambda named: (named,))


def _of_question(question: Question, given: Sequence[tuple[int, Any]]) -> Distribution:
    options = tuple(
        Option(key=choice.key, label=choice.label or choice.key)
        for choice in (question.choices if question.kind in CHOSEN_KINDS else ())
    )
    return _distribution(
        question.key,
        question.text,
        question.kind,
        options,
        question.choice_keys,
        given,
        lambda value: value if isinstance(value, tuple | list) else (str(value),),
        unit=question.unit,
    )


def _distribution(
    key: str,
    text: str,
    kind: str,
    options: Sequence[Option],
    places: Sequence[Any],
    given: Sequence[tuple[int, Any]],
    chosen: Any,
    *,
    unit: str = "",
) -> Distribution:
    by_person: dict[int, list[Any]] = {}
    for annotator, value in given:
        by_person.setdefault(annotator, []).append(value)

    def spread(values: Sequence[Any]) -> Spread:
        counts = Counter(place for value in values for place in chosen(value))
        numbers = [_measured(kind, value) for value in values] if kind in MEASURED else []
        return Spread(
            answers=len(values),
            counts=tuple(counts[place] for place in places),
            mean=fmean(numbers) if numbers else None,
            median=median(numbers) if numbers else None,
            least=min(numbers, default=None),
            most=max(numbers, default=None),
        )

    return Distribution(
        key=key,
        text=text,
        kind=kind,
        unit=unit,
        options=tuple(options),
        everybody=spread([value for _annotator, value in given]),
        people=tuple((annotator, spread(values)) for annotator, values in by_person.items()),
    )


def _measured(kind: str, value: Any) -> float:
    return float(date.fromisoformat(value).toordinal()) if kind == "date" else float(value)
