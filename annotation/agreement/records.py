"""Judgments as plain data, as the statistics take them."""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations
from math import comb
from typing import Any, TypeVar

from annotation.choices import Purpose, Verdict

# Selections: the part of a project that a report is about.


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """A round, a category of marks, one annotator or two; None selects everything."""

    round_number: int | None = None
    category_id: int | None = None
    annotator_id: int | None = None
    other_id: int | None = None

    @property
    def annotator_ids(self) -> tuple[int, ...]:
        """The annotators that are chosen: none, one or two."""
        chosen = (self.annotator_id, self.other_id)
        return tuple(dict.fromkeys(pk for pk in chosen if pk is not None))

    @property
    def rounds(self) -> tuple[int, ...] | None:
        """The rounds to read; None for all."""
        return None if self.round_number is None else (self.round_number,)

    def is_of(self, annotator_id: int) -> bool:
        """Return True where this annotator's work is part of it."""
        return not self.annotator_ids or annotator_id in self.annotator_ids

    @property
    def key(self) -> str:
        """The selection as part of a cache key."""
        return f"{self.round_number}:{self.category_id}:{self.annotator_id}:{self.other_id}"


K = TypeVar("K", int, str)
"""A completion's id, or its name in a record."""


def outcome_between(ranks: Mapping[int, float], left: int, right: int) -> int | None:
    """Return 1 where `left` is better, −1 where `right` is, 0 for a tie; None where ranks say nothing.

    left, right: of the judged completions. One without a rank is below all that have one; two say nothing.
    """
    first, second = ranks.get(left), ranks.get(right)
    if first is None or second is None:
        return None if first is second else 1 if second is None else -1
    return (second > first) - (second < first)


def decides_a_pair(ranks: Mapping[int, int], size: int) -> bool:
    """Return True where ranks of some of `size` completions put one above another."""
    return len(set(ranks.values())) > 1 or 0 < len(ranks) < size


def unordered_among(ranks: Mapping[K, int], completions: Iterable[K]) -> list[K]:
    """Return the completions that a partial ranking leaves without an order; none where nothing is ranked."""
    return [pk for pk in completions if pk not in ranks] if ranks else []


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """One current judgment: who said what about which completions, shown in which order."""

    pk: int
    comparison: int
    prompt: int
    round_number: int
    purpose: str
    assignment: int
    retest_of: int | None
    annotator: int
    verdict: str
    strength: int | None
    seconds: int | None
    at: datetime
    shown: tuple[int, ...]
    """Completion ids in the order in which they were displayed."""
    ranks: dict[int, int]
    """Of a partial ranking, those of the best completions alone."""
    undecided: frozenset[frozenset[int]]
    """Pairs that an imported set calls equal although its other pairs give them different ranks."""
    is_revision: bool = False
    """It supersedes an earlier judgment; its time is that of the change alone."""
    in_bulk: bool = False
    """It was given to several comparisons at once; no time is measured."""

    @property
    def is_first_work(self) -> bool:
        """Return True for work that counts for agreement: real work, and not its repetition."""
        return self.purpose == Purpose.WORK and self.retest_of is None

    @property
    def completions(self) -> tuple[int, ...]:
        """The completions in an order that everyone shares: by age."""
        return tuple(sorted(self.shown))

    def outcome(self, left: int, right: int) -> int | None:
        """1 where `left` is better, −1 where `right` is, 0 where neither; None where nothing was said."""
        if self.undecided and frozenset((left, right)) in self.undecided:
            return 0
        return outcome_between(self.ranks, left, right)

    def leaves_open(self, left: int, right: int) -> bool:
        """Return True where it is a ranking that gives these two no order."""
        return bool(self.ranks) and self.outcome(left, right) is None

    def outcomes(self) -> list[tuple[int, int, int]]:
        """Every pair of its completions with the outcome: (older, younger, outcome)."""
        return [
            (left, right, outcome)
            for left, right in combinations(self.completions, 2)
            if (outcome := self.outcome(left, right)) is not None
        ]


@dataclass(frozen=True, slots=True, order=True)
class JudgedSpan:
    """A marked stretch, half open, with its category."""

    start: int
    end: int
    category: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The answer of one judgment to one question."""

    judgment: int
    question: str
    about: Hashable
    """The same for what two annotators answered of the same: the comparison, a completion, a step of it, or
    a span of the same category, start and end."""
    value: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Rated:
    """One completion's rating on one criterion."""

    judgment: int
    completion: int
    criterion: int
    value: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldAnswered:
    """One person's first answer to an item whose answer is known."""

    comparison: int
    annotator: int
    right: bool


# Plain records as what the statistics take: units of items, outcomes by position, circles, gold.

# Intransitive preferences of one annotator. Plain Python.

Wins = Mapping[tuple[Any, Any], int]
"""(a, b) → 1 where a is better, −1 where b is, 0 where neither."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Circles:
    """The triples of completions that one person has decided, and those that go round in a circle."""

    cyclic: tuple[tuple[Hashable, Hashable, Hashable], ...]
    triples: int
    """All that could have been cyclic: their pairs were not asked in one ranking."""
    of_one_ranking: int
    """Triples of one ranking, which is never cyclic."""


def circles_among(wins: Wins, asked_together: Mapping[tuple[Any, Any], Hashable] | None = None) -> Circles:
    """Circles in one person's preferences among the completions of one prompt.

    Counted are triples whose three pairs are all decided. One is cyclic where a beats b, b beats c and c
    beats a (Kendall & Babington Smith 1940). Whoever tosses a coin has one in four. `asked_together` gives
    the judgment of each pair: a triple of one judgment cannot be cyclic and is counted apart.
    """
    better: dict[Hashable, dict[Hashable, int]] = {}
    judgment: dict[frozenset[Hashable], Hashable] = {}
    for pair, outcome in wins.items():
        left, right = pair
        if outcome:
            better.setdefault(left, {})[right] = outcome
            better.setdefault(right, {})[left] = -outcome
            judgment[frozenset(pair)] = asked_together[pair] if asked_together else frozenset(pair)
    cyclic, triples, of_one_ranking = [], 0, 0
    for a, b, c in combinations(sorted(better, key=str), 3):
        first, second, third = better[a].get(b), better[b].get(c), better[c].get(a)
        if not (first and second and third):
            continue
        if len({judgment[frozenset(pair)] for pair in ((a, b), (b, c), (c, a))}) == 1:
            of_one_ranking += 1
            continue
        triples += 1
        if first == second == third:
            cyclic.append((a, b, c))
    return Circles(cyclic=tuple(cyclic), triples=triples, of_one_ranking=of_one_ranking)


Items = dict[int, list[Judged]]
"""Comparison → the judgments of it that count for agreement."""

Units = list[dict[Hashable, Hashable]]
"""For each pair of completions of a comparison: annotator → what they said of it."""


def by_comparison(judged: Iterable[Judged]) -> Items:
    """Real work, without its repetitions, by comparison."""
    items: Items = defaultdict(list)
    for judgment in judged:
        if judgment.is_first_work:
            items[judgment.comparison].append(judgment)
    return dict(items)


def together(judged: Iterable[Judged], selection: Selection) -> Items:
    """Return the judgments on which agreement is measured, by comparison.

    With two annotators chosen these are their judgments of what both judged; with one, all judgments of the
    comparisons that this one judged; else all.
    """
    items = by_comparison(judged)
    chosen = set(selection.annotator_ids)
    if len(chosen) == 2:
        both = {
            pk: [judgment for judgment in item if judgment.annotator in chosen] for pk, item in items.items()
        }
        return {pk: item for pk, item in both.items() if len(item) == 2}
    if chosen:
        return {
            pk: item for pk, item in items.items() if any(judgment.annotator in chosen for judgment in item)
        }
    return items


def pair_units(item: Sequence[Judged]) -> Units:
    """For each pair of completions: annotator → which is better, or neither."""
    units: dict[tuple[int, int], dict[Hashable, Hashable]] = defaultdict(dict)
    for judgment in item:
        for left, right, outcome in judgment.outcomes():
            units[left, right][judgment.annotator] = outcome
    return list(units.values())


def agreeing_share(item: Sequence[Judged]) -> float | None:
    """Return the share of agreeing pairs of annotators over all pairs of completions of one comparison.

    Σ_u Σ_c C(n_uc, 2) / Σ_u C(n_u, 2), where n_u people ordered the pair u and n_uc of them said c. None
    where no two people ordered a pair.
    """
    agreeing = total = 0
    for unit in pair_units(item):
        total += comb(len(unit), 2)
        agreeing += sum(comb(people, 2) for people in Counter(unit.values()).values())
    return agreeing / total if total else None


def numbers(units: Iterable[Mapping[Hashable, Hashable]]) -> list[list[float]]:
    """The same units as plain numbers, without names."""
    return [[float(str(value)) for value in unit.values()] for unit in units]


_NO_WIN = {Verdict.EQUAL: 2.0, Verdict.BOTH_GOOD: 3.0, Verdict.BOTH_BAD: 4.0, Verdict.CANNOT_JUDGE: 5.0}


def verdict_units(item: Sequence[Judged]) -> list[list[float]]:
    """Of a pair: who won, or which of the four non-wins it was; numbers stand for names."""
    unit = []
    for judgment in item:
        if len(judgment.shown) == 2 and judgment.verdict != Verdict.NOT_ASKED:
            won = sum(outcome for _, _, outcome in judgment.outcomes())
            unit.append(_NO_WIN.get(Verdict(judgment.verdict), float(won)))
    return [unit]


def strength_units(item: Sequence[Judged]) -> list[list[float]]:
    """Of a pair: how much better the older completion is, −4 to 4; 0 where neither is."""
    unit = []
    for judgment in item:
        for _, _, outcome in judgment.outcomes() if len(judgment.shown) == 2 else ():
            if outcome == 0:
                unit.append(0.0)
            elif judgment.strength is not None:
                unit.append(float(outcome * judgment.strength))
    return [unit]


def rank_units(item: Sequence[Judged]) -> list[list[float]]:
    """Of a ranking of three or more: for each completion the ranks that people gave it.

    Who left a completion without an order gave it none.
    """
    units: dict[int, list[float]] = defaultdict(list)
    for judgment in item:
        if len(judgment.shown) > 2:
            for completion, rank in judgment.ranks.items():
                units[completion].append(float(rank))
    return list(units.values())


def rankings(item: Sequence[Judged]) -> list[list[float]]:
    """Return the rankings of three or more completions, each in the order of `Judged.completions`.

    A completion without an order has the rank infinity; see `kendall_tau_b`.
    """
    return [
        [float(judgment.ranks.get(completion, math.inf)) for completion in judgment.completions]
        for judgment in item
        if len(judgment.shown) > 2 and judgment.ranks
    ]


def position_outcomes(item: Sequence[Judged]) -> list[tuple[int, int, int]]:
    """(earlier position, later position, who won) of every pair of every judgment of one comparison."""
    outcomes = []
    for judgment in item:
        for earlier, later in combinations(range(len(judgment.shown)), 2):
            outcome = judgment.outcome(judgment.shown[earlier], judgment.shown[later])
            if outcome is not None:
                outcomes.append((earlier, later, outcome))
    return outcomes


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptPreferences:
    """All that one annotator said of the completions of one prompt; later words replace earlier ones."""

    annotator: int
    prompt: int
    wins: dict[tuple[Hashable, Hashable], int]
    asked_together: dict[tuple[Hashable, Hashable], Hashable]
    comparisons: frozenset[int]


def preferences_by_prompt(judged: Iterable[Judged]) -> list[PromptPreferences]:
    """For each annotator and prompt the pairs they decided, with the judgment of each."""
    groups: dict[tuple[int, int], list[Judged]] = defaultdict(list)
    for judgment in judged:
        if judgment.is_first_work:
            groups[judgment.annotator, judgment.prompt].append(judgment)
    return [
        PromptPreferences(
            annotator=annotator,
            prompt=prompt,
            wins={(left, right): outcome for reading in group for left, right, outcome in reading.outcomes()},
            asked_together={
                (left, right): reading.pk for reading in group for left, right, _ in reading.outcomes()
            },
            comparisons=frozenset(reading.comparison for reading in group),
        )
        for (annotator, prompt), group in groups.items()
    ]


def retest_matches(judged: Sequence[Judged]) -> list[tuple[Judged, int, int]]:
    """Each repeated judgment with the number of pairs said alike both times, and of all pairs.

    A pair on which somebody once said nothing (cannot judge) and once something is not alike; one of
    which nothing was said both times, or to which one of two rankings gives no order, is left out.
    """
    firsts = {judgment.assignment: judgment for judgment in judged}
    matches = []
    for again in judged:
        first = firsts.get(again.retest_of) if again.retest_of is not None else None
        if first is not None:
            both = (first, again)
            pairs = [
                tuple(judgment.outcome(left, right) for judgment in both)
                for left, right in combinations(first.completions, 2)
                if not any(judgment.leaves_open(left, right) for judgment in both)
            ]
            outcomes = [pair for pair in pairs if pair != (None, None)]
            matches.append((again, sum(before == after for before, after in outcomes), len(outcomes)))
    return matches
