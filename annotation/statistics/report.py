"""The report that a manager reads, as plain values: it loads no NumPy and fits into a cache."""

from dataclasses import dataclass
from datetime import date, datetime

from annotation.agreement.estimate import Estimate, PositionBias
from annotation.agreement.records import Selection


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One statistic of the report. `key` is its name in labels.py, `show` the items behind it."""

    key: str
    estimate: Estimate
    show: str = ""
    criterion: str = ""
    """The label of the criterion, for a figure about ratings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Active time, over judgments that measured it."""

    judgments: int
    measured: int
    total_seconds: int
    median_seconds: float | None
    seconds_per_item: float | None
    """Total over the comparisons that were judged: what one comparison costs with its overlap."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundAgreement:
    """Agreement on pairs in one round."""

    round_number: int
    percent: Estimate
    kappa: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class PeopleAgreement:
    """Agreement on pairs between two annotators."""

    first: int
    second: int
    percent: Estimate
    kappa: Estimate
    tau: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedAgreement:
    """Percent agreement on pairs between two annotators, without an interval: for all of them at once."""

    first: int
    second: int
    share: float
    items: int
    """Comparisons on which both gave a preference."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Person:
    """One annotator: how much, how quickly, and how far to be relied on."""

    pk: int
    judgments: int
    median_seconds: float | None
    measured: int
    """Judgments with a measured time."""
    in_bulk: int
    """Judgments that were given to several comparisons at once."""
    total_seconds: int
    active_days: int
    last_at: datetime
    reliability: Estimate
    """η of Crowd-BT; `items` counts the pairs shared with others."""
    gold: Estimate
    retest: Estimate
    recent_seconds: float | None
    """Median active time of the newest annotations; None before there are enough."""
    unread: Estimate
    """Share of the newest annotations that took less time than reading takes."""
    agreement_change: Estimate
    """Agreement with others in the newest shared comparisons less that in those before."""
    gold_change: Estimate
    """Gold accuracy in the newest answers less that in those before."""


MEASURED = ("scale", "number", "date")
"""Kinds of questions whose answers have a mean and a median."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """A choice, a point of a scale or a category that is counted."""

    key: str
    label: str
    is_part: bool = False
    """A sub-category, whose category counts it as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Answers of one annotator or of all."""

    answers: int
    counts: tuple[int, ...]
    """By option."""
    mean: float | None
    """Of scales, numbers and dates, which count days; None for others."""
    median: float | None
    least: float | None
    most: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """Answers to one additional question in its newest version, spans by category, or relations of spans."""

    key: str
    """Of the question; of the others “spans” and “relations”."""
    text: str
    """The question; empty for the others."""
    kind: str
    """Kind of the question, “spans” or “relations”."""
    unit: str
    options: tuple[Option, ...]
    everybody: Spread
    people: tuple[tuple[int, Spread], ...]
    """By annotator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All figures of one selection."""

    selection: Selection
    computed_at: datetime
    seconds: float
    judgments: int
    comparisons: int
    days: tuple[tuple[date, int], ...]
    hours: tuple[int, ...]
    """Judgments by hour of the day, 24 numbers."""
    cost: Cost
    agreement: tuple[Figure, ...]
    spans: tuple[Figure, ...]
    rewrites: tuple[Figure, ...]
    """Of corrections, rewrites among them; none where the project asks for none and nobody wrote one."""
    rounds: tuple[RoundAgreement, ...]
    people_pairs: tuple[PeopleAgreement, ...]
    people_pairs_left_out: int
    shared: tuple[SharedAgreement, ...]
    """Of all pairs of annotators who share a comparison."""
    position: PositionBias
    by_position: tuple[Estimate, ...]
    consistency: tuple[Figure, ...]
    triples: int
    circles: int
    people: tuple[Person, ...]
    answers: tuple[Distribution, ...] = ()
    """By additional question, those with an answer."""
    span_counts: Distribution | None = None
    """None without a span."""
    relation_counts: Distribution | None = None
    """None without a relation."""

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Every statistic with a name."""
        return (
            *self.agreement,
            *self.spans,
            *self.rewrites,
            Figure(key="position", estimate=self.position.estimate, show="first-won"),
            *self.consistency,
        )
