"""The report as rows for its templates: names, numbers as text, places in plots, links to the items."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from statistics import median
from urllib.parse import urlencode

from django.db.models import Count, Q, Sum
from django.urls import reverse
from django.utils.formats import date_format, number_format
from django.utils.functional import Promise, cached_property
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from annotation.agreement.estimate import Estimate
from annotation.agreement.records import Selection
from annotation.choices import AssignmentState, Availability, PaceSign, Purpose, Role, Shown, SpanRelation
from annotation.models import Assignment, Comparison, Project, User
from annotation.selectors.eligibility import MemberAvailability, availability_of_annotators
from annotation.selectors.pastes import PastedText, pasted_by_annotator
from annotation.statistics.labels import FIGURES, REASONS, SHARES
from annotation.statistics.plots import COEFFICIENT, SHARE, Axis, Bar, PlottedInterval, bars
from annotation.statistics.report import (
    MEASURED,
    Distribution,
    Figure,
    Option,
    Person,
    Report,
    Spread,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Number:
    """One estimate as it is written: value, interval, how many items, or why there is none."""

    value: str
    interval: str
    items: int
    reason: str
    mark: PlottedInterval | None
    link: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of a table: a name, a sentence, and one or more numbers."""

    name: str
    note: str
    numbers: tuple[Number, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CountRow:
    """One option of a distribution, or one of its figures below."""

    label: str
    is_part: bool
    everybody: str
    share: float | None
    """Of all answers; None for a figure."""
    people: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CountTable:
    """A distribution as a table: options by annotator."""

    id: str
    title: str
    names: tuple[str, ...]
    rows: tuple[CountRow, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PersonRow:
    """One annotator."""

    pk: int
    name: str
    judgments: int
    in_bulk: int
    link: str
    median_seconds: float | None
    reliability: Number
    gold: Number
    retest: Number


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundProgress:
    number: int
    comparisons: int
    wanted: int
    done: int
    held: int
    open: int
    link: str
    open_link: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PaceChart:
    """Judgments over time, as bars and as numbers."""

    bars: tuple[Bar, ...]
    labels: tuple[str, ...]
    counts: tuple[int, ...]
    text: str

    @property
    def lines(self) -> list[tuple[str, int]]:
        """Label and number of those that are not 0."""
        return [(label, count) for label, count in zip(self.labels, self.counts, strict=True) if count]


def progress_by_round(project: Project) -> list[RoundProgress]:
    """Return the current progress of each round. Two queries."""
    work = Comparison.objects.filter(project=project, purpose=Purpose.WORK)
    totals = work.values("round_number").annotate(
        comparisons=Count("pk"), wanted=Sum("overlap"), open=Sum("open_slots")
    )
    slots = Assignment.objects.filter(
        comparison__project=project, comparison__purpose=Purpose.WORK, slot__isnull=False
    ).values_list("comparison__round_number")
    held = {
        number: (done, leased)
        for number, done, leased in slots.annotate(
            done=Count("pk", filter=Q(state=AssignmentState.SUBMITTED)),
            leased=Count("pk", filter=Q(state=AssignmentState.LEASED)),
        ).order_by("comparison__round_number")
    }
    return [
        RoundProgress(
            number=row["round_number"],
            comparisons=row["comparisons"],
            wanted=row["wanted"],
            done=held.get(row["round_number"], (0, 0))[0],
            held=held.get(row["round_number"], (0, 0))[1],
            open=row["open"],
            link=_link(project, Selection(round_number=row["round_number"]), Shown.JUDGED),
            open_link=_link(project, Selection(round_number=row["round_number"]), Shown.OPEN),
        )
        for row in totals.order_by("round_number")
    ]


class ReportPage:
    """One report with everything its template writes."""

    def __init__(self, project: Project, report: Report, people: dict[int, str]) -> None:
        self.project = project
        self.report = report
        self.people_names = people
        self.selection = report.selection

    @property
    def judged_link(self) -> str:
        """To all comparisons of the selection."""
        return _link(self.project, self.selection, Shown.JUDGED)

    @property
    def agreement(self) -> list[Row]:
        """Agreement on pairs, rankings and ratings."""
        return self._rows(self.report.agreement, COEFFICIENT)

    @property
    def spans(self) -> list[Row]:
        """Agreement on marks."""
        return self._rows(self.report.spans, COEFFICIENT)

    @property
    def answers(self) -> list[CountTable]:
        """Answers to each additional question."""
        return [
            self._counted(distribution, f"answers-{number}", distribution.text)
            for number, distribution in enumerate(self.report.answers, start=1)
        ]

    @property
    def span_counts(self) -> CountTable | None:
        """Spans by category; None without one."""
        counts = self.report.span_counts
        return None if counts is None else self._counted(counts, "span-counts", _("Spans by category"))

    @property
    def relation_counts(self) -> CountTable | None:
        """Relations of spans by the categories of both; None without one."""
        counts = self.report.relation_counts
        return None if counts is None else self._counted(counts, "relation-counts", _("Relations of spans"))

    def _counted(self, distribution: Distribution, id_: str, title: str) -> CountTable:
        spreads = sorted(distribution.people, key=lambda pair: self._name(pair[0]).casefold())
        people = [spread for _pk, spread in spreads]
        everybody = distribution.everybody
        rows = [
            CountRow(
                label=_with_kind(option) if distribution.kind == "relations" else option.label,
                is_part=option.is_part,
                everybody=str(everybody.counts[place]),
                share=everybody.counts[place] / everybody.answers,
                people=tuple(str(spread.counts[place]) for spread in people),
            )
            for place, option in enumerate(distribution.options)
        ]
        figures: list[tuple[str | Promise, str]]
        if distribution.kind == "spans":
            figures = [(_("All spans"), "answers")]
        elif distribution.kind == "relations":
            figures = [(_("All relations"), "answers")]
        else:
            measured = _FIGURES_OF_NUMBERS if distribution.kind in MEASURED else ()
            figures = [(_("Answers"), "answers"), *measured]
        rows += [
            CountRow(
                label=str(label),
                is_part=False,
                everybody=_figure(distribution, everybody, name),
                share=None,
                people=tuple(_figure(distribution, spread, name) for spread in people),
            )
            for label, name in figures
        ]
        unit = f"{title} ({distribution.unit})" if distribution.unit else title
        return CountTable(
            id=id_,
            title=unit,
            names=tuple(self._name(pk) for pk, _spread in spreads),
            rows=tuple(rows),
        )

    @property
    def rewrites(self) -> list[Row]:
        """Return the share of responses that were rewritten, and the share of their text."""
        return self._rows(self.report.rewrites, SHARE)

    @property
    def consistency(self) -> list[Row]:
        """Gold, test-retest, circles."""
        return self._rows(self.report.consistency, SHARE)

    @property
    def rounds(self) -> list[Row]:
        """Agreement on pairs by round."""
        return [
            Row(
                name=_("Round %(number)s") % {"number": agreement.round_number},
                note="",
                numbers=tuple(
                    self._number(
                        estimate,
                        COEFFICIENT,
                        share=share,
                        shown=Shown.DISAGREE,
                        selection=self._with(round_number=agreement.round_number),
                    )
                    for estimate, share in ((agreement.percent, True), (agreement.kappa, False))
                ),
            )
            for agreement in self.report.rounds
        ]

    @property
    def pairs_of_people(self) -> list[Row]:
        """Agreement of annotators two by two."""
        return [
            Row(
                name=_("%(first)s and %(second)s")
                % {"first": self._name(agreement.first), "second": self._name(agreement.second)},
                note="",
                numbers=tuple(
                    self._number(
                        estimate,
                        COEFFICIENT,
                        share=share,
                        shown=Shown.DISAGREE,
                        selection=self._with(annotator_id=agreement.first, other_id=agreement.second),
                    )
                    for estimate, share in (
                        (agreement.percent, True),
                        (agreement.kappa, False),
                        (agreement.tau, False),
                    )
                ),
            )
            for agreement in self.report.people_pairs
        ]

    @property
    def position(self) -> list[Row]:
        """The share won by what was shown first, with both intervals, and the share of each place."""
        position = self.report.position
        overall = Row(
            name=str(FIGURES["position"][0]),
            note=_("Wilson’s interval: right where each comparison is a pair."),
            numbers=(self._number(position.estimate, SHARE, share=True, shown=Shown.FIRST_WON),),
        )
        resampled = Row(
            name=_("The same, interval over comparisons"),
            note=_("Right for rankings, too: what one comparison holds stays together."),
            numbers=(self._number(position.over_items, SHARE, share=True, shown=Shown.LATER_WON),),
        )
        places = [
            Row(
                name=_("Position %(number)s") % {"number": place},
                note=_("Share of its decided pairs won by the response in this position."),
                numbers=(self._number(estimate, SHARE, share=True, shown=Shown.JUDGED),),
            )
            for place, estimate in enumerate(self.report.by_position, start=1)
        ]
        return [overall, resampled, *(places if len(places) > 2 else [])]

    @property
    def position_text(self) -> str:
        """The counts behind the position bias, and how surprising they are."""
        position = self.report.position
        if position.p_value is None:
            return ""
        p = (
            _("p < 0.001")
            if position.p_value < 0.001
            else "p = " + number_format(round(position.p_value, 3), 3)
        )
        return _(
            "%(wins)s of %(decided)s decided pairs were won by what was shown first; %(tied)s more "
            "were ties. Exact binomial test against one half: %(p)s."
        ) % {"wins": position.wins, "decided": position.decided, "tied": position.tied, "p": p}

    @property
    def circles_text(self) -> str:
        """The counts behind the circles."""
        if not self.report.triples:
            return ""
        return ngettext(
            "%(circles)s of %(triples)s triple is intransitive.",
            "%(circles)s of %(triples)s triples are intransitive.",
            self.report.triples,
        ) % {"circles": self.report.circles, "triples": self.report.triples}

    @property
    def people(self) -> list[PersonRow]:
        """Annotators by name."""
        rows = []
        for person in self.report.people:
            mine = self._with(annotator_id=person.pk, other_id=None)
            rows.append(
                PersonRow(
                    pk=person.pk,
                    name=self._name(person.pk),
                    judgments=person.judgments,
                    in_bulk=person.in_bulk,
                    link=_link(self.project, mine, Shown.JUDGED),
                    median_seconds=person.median_seconds,
                    reliability=self._number(
                        person.reliability, SHARE, share=False, shown=Shown.DISAGREE, selection=mine
                    ),
                    gold=self._number(person.gold, SHARE, share=True, shown=Shown.GOLD_WRONG, selection=mine),
                    retest=self._number(
                        person.retest, SHARE, share=True, shown=Shown.RETEST_CHANGED, selection=mine
                    ),
                )
            )
        return sorted(rows, key=lambda row: row.name.casefold())

    @property
    def days(self) -> PaceChart | None:
        """Judgments a day."""
        return pace_by_day(self.report.days)

    @property
    def hours(self) -> PaceChart | None:
        """Judgments by hour of the day."""
        counts = self.report.hours
        if not any(counts):
            return None
        busiest = counts.index(max(counts))
        return PaceChart(
            bars=tuple(bars(counts)),
            labels=tuple(f"{hour:02}:00" for hour in range(24)),
            counts=counts,
            text=_("Annotations by hour of the day: most, %(most)s, from %(hour)s on.")
            % {"most": counts[busiest], "hour": f"{busiest:02}:00"},
        )

    def _rows(self, figures: tuple[Figure, ...], axis: Axis) -> list[Row]:
        rows = []
        for figure in figures:
            name, note = FIGURES[figure.key]
            number = self._number(
                figure.estimate,
                axis,
                share=figure.key in SHARES,
                shown=Shown(figure.show) if figure.show else None,
            )
            label = f"{figure.criterion}: {name}" if figure.criterion else str(name)
            rows.append(Row(name=label, note=str(note), numbers=(number,)))
        return rows

    def _number(
        self,
        estimate: Estimate,
        axis: Axis,
        *,
        share: bool,
        shown: Shown | None = None,
        selection: Selection | None = None,
    ) -> Number:
        return Number(
            value=written(estimate.value, share=share),
            interval=""
            if estimate.low is None
            else _("%(low)s to %(high)s")
            % {
                "low": written(estimate.low, share=share),
                "high": written(estimate.high, share=share),
            },
            items=estimate.items,
            reason="" if estimate.missing is None else str(REASONS[estimate.missing]),
            mark=axis.interval(estimate.value, estimate.low, estimate.high),
            link=_link(self.project, selection or self.selection, shown) if shown else "",
        )

    def _with(self, **changes: int | None) -> Selection:
        chosen = self.selection
        fields = {
            "round_number": chosen.round_number,
            "category_id": chosen.category_id,
            "annotator_id": chosen.annotator_id,
            "other_id": chosen.other_id,
        }
        return Selection(**{**fields, **changes})

    def _name(self, pk: int) -> str:
        return self.people_names.get(pk, str(pk))


_FIGURES_OF_NUMBERS: tuple[tuple[str | Promise, str], ...] = (
    (gettext_lazy("Mean"), "mean"),
    (gettext_lazy("Median"), "median"),
    (gettext_lazy("Smallest"), "least"),
    (gettext_lazy("Largest"), "most"),
)


def _figure(distribution: Distribution, spread: Spread, name: str) -> str:
    """Return a figure as it is written: a date as a day, a number with two decimals at most."""
    value = getattr(spread, name)
    if value is None:
        return ""
    if name == "answers":
        return number_format(value)
    if distribution.kind == "date":
        return date_format(date.fromordinal(round(value)), "j M Y")
    rounded = round(value, 2)
    return number_format(int(rounded) if rounded == int(rounded) else rounded)


def cost_of(project: Project, report: Report) -> Decimal | None:
    """Return the cost of the measured time at the project's wage; None without a wage or time."""
    return _wages(project, report.cost.total_seconds) if report.cost.measured else None


def expected_cost_of(project: Project, report: Report | None, annotations: int) -> Decimal | None:
    """Return the cost of so many annotations at the median time measured; None without wage or time."""
    median = report.cost.median_seconds if report else None
    return None if median is None else _wages(project, Decimal(annotations * median))


def _wages(project: Project, seconds: int | Decimal) -> Decimal | None:
    if project.hourly_wage is None:
        return None
    return (project.hourly_wage * seconds / 3600).quantize(Decimal("0.01"))


def pace_by_day(days: Sequence[tuple[date, int]]) -> PaceChart | None:
    """Return judgments a day as bars; None without days."""
    if not days:
        return None
    counts = tuple(count for _day, count in days)
    return PaceChart(
        bars=tuple(bars(counts)),
        labels=tuple(date_format(day, "j M Y") for day, _count in days),
        counts=counts,
        text=_("Annotations per day from %(first)s to %(last)s: %(most)s at most.")
        % {
            "first": date_format(days[0][0], "j M Y"),
            "last": date_format(days[-1][0], "j M Y"),
            "most": max(counts),
        },
    )


def written(value: float | None, *, share: bool) -> str:
    """A share as percent with one decimal, a coefficient with three; nothing for None."""
    if value is None:
        return ""
    # Django cuts the decimals of a float off; it does not round them.
    if share:
        return number_format(round(100 * value, 1), 1) + "\N{NO-BREAK SPACE}%"
    return number_format(round(value, 3), 3)


def _link(project: Project, selection: Selection, shown: Shown) -> str:
    chosen = {
        "show": shown.value,
        "round": selection.round_number,
        "category": selection.category_id,
        "annotator": selection.annotator_id,
        "other": selection.other_id,
    }
    query = urlencode({name: value for name, value in chosen.items() if value is not None})
    return f"{reverse('statistics-items', args=[project.slug])}?{query}"


# The annotators of a project side by side: their work, and their agreement two by two.

FEWEST_SHARED = 10
"""With fewer shared comparisons an agreement is not shown: its interval would cover most of the scale."""
MOST_IN_MAP = 30
"""So many annotators stand in the heat map: those with most annotations."""
STEPS = 5
"""Steps of colour, from no agreement to full."""


SLOW = 2
"""So many times the median of the others' median times is slow."""
FEWEST_OTHERS = 2
"""Annotators with enough measured times whom a pace is compared with."""
UNREAD_SHARE = 0.1
"""A person is fast where surely more than this share of annotations took less time than reading takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownSign:
    """A sign that an annotator's work deserves a look, with the figures behind it."""

    sign: PaceSign
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnotatorRow:
    """One annotator as a line of the table."""

    pk: int
    name: str
    annotations: int
    seconds: int
    last_at: datetime | None
    per_hour: float | None
    per_day: float | None
    median_seconds: float | None
    skips: int
    skip_share: float | None
    """Of all that they either submitted or skipped."""
    reliability: Number | None
    gold: Number | None
    retest: Number | None
    availability: MemberAvailability | None
    """None for who is no annotator of the project (any more)."""
    signs: tuple[ShownSign, ...]
    pasted: PastedText | None
    """None where the project does not record it, or nothing was pasted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AgreementCell:
    """The agreement of two annotators as a cell of the heat map."""

    text: str
    step: int | None
    """0 to 4, or None for no colour."""
    title: str
    other: int | None = None
    """The annotator of the column; None on the diagonal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatRow:
    """One annotator's agreement with each other one."""

    pk: int
    name: str
    cells: Sequence[AgreementCell]


class AnnotatorsPage:
    """All annotators of a project: those who annotated, and members who have not begun."""

    def __init__(self, project: Project, report: Report) -> None:
        self.project = project
        self.report = report
        members = User.objects.filter(
            memberships__project=project, memberships__role=Role.ANNOTATOR, is_machine=False
        )
        who_annotated = User.objects.filter(pk__in=[person.pk for person in report.people])
        self.names = {user.pk: str(user) for users in (members, who_annotated) for user in users}
        self._report_page = ReportPage(project, report, self.names)
        self._shared = {(agreement.first, agreement.second): agreement for agreement in report.shared}

    @cached_property
    def rows(self) -> list[AnnotatorRow]:
        """Every annotator by name. Up to two queries, and those of `availability_of_annotators`."""
        skips = skips_by_annotator(self.project, self.names)
        availability = availability_of_annotators(self.project)
        pasted = pasted_by_annotator(self.project)
        people = {person.pk: person for person in self.report.people}
        measured = {row.pk: row for row in self._report_page.people}
        rows = []
        for pk, name in sorted(self.names.items(), key=lambda pair: pair[1].casefold()):
            person, row = people.get(pk), measured.get(pk)
            annotations = person.judgments if person else 0
            hours = person.total_seconds / 3600 if person else 0.0
            handled = annotations + skips.get(pk, 0)
            rows.append(
                AnnotatorRow(
                    pk=pk,
                    name=name,
                    annotations=annotations,
                    seconds=person.total_seconds if person else 0,
                    last_at=person.last_at if person else None,
                    per_hour=person.measured / hours if person and hours else None,
                    per_day=annotations / person.active_days if person else None,
                    median_seconds=person.median_seconds if person else None,
                    skips=skips.get(pk, 0),
                    skip_share=skips.get(pk, 0) / handled if handled else None,
                    reliability=row.reliability if row else None,
                    gold=row.gold if row else None,
                    retest=row.retest if row else None,
                    availability=availability.get(pk),
                    signs=signs_of(person, self.report.people) if person else (),
                    pasted=pasted.get(pk),
                )
            )
        return rows

    @property
    def counts(self) -> list[tuple[str, int]]:
        """Availabilities and signs with the number of annotators, those of nobody left out."""
        counted = Counter(
            str(row.availability.availability.label) for row in self.rows if row.availability is not None
        )
        counted.update(str(shown.sign.label) for row in self.rows for shown in row.signs)
        labels = [str(choice.label) for choices in (Availability, PaceSign) for choice in choices]
        return [(label, counted[label]) for label in labels if counted[label]]

    def row_of(self, pk: int) -> AnnotatorRow | None:
        """Return the line of one annotator; None for who has nothing to do with the project."""
        return next((row for row in self.rows if row.pk == pk), None)

    @property
    def in_map(self) -> list[int]:
        """The annotators in the heat map, by name; none where nobody shares a comparison."""
        if not self._shared:
            return []
        most = sorted(self.report.people, key=lambda person: (-person.judgments, person.pk))[:MOST_IN_MAP]
        return sorted((person.pk for person in most), key=lambda pk: self.names.get(pk, "").casefold())

    @property
    def left_out(self) -> int:
        """Return the number of annotators that the heat map leaves out."""
        return max(0, len(self.report.people) - MOST_IN_MAP) if self._shared else 0

    @property
    def heat(self) -> list[HeatRow]:
        """The heat map."""
        people = self.in_map
        return [self._heat_row(pk, people) for pk in people]

    def heat_of(self, pk: int) -> list[tuple[int, str, AgreementCell]]:
        """Return one annotator's agreement with each other one of the map who shares a comparison."""
        return [
            (other, self.names.get(other, str(other)), self._cell(pk, other))
            for other in self.in_map
            if other != pk and (min(pk, other), max(pk, other)) in self._shared
        ]

    @property
    def columns(self) -> list[str]:
        """Names over the columns of the heat map."""
        return [self.names.get(pk, str(pk)) for pk in self.in_map]

    def _heat_row(self, pk: int, people: Sequence[int]) -> HeatRow:
        cells = [self._cell(pk, other) for other in people]
        return HeatRow(pk=pk, name=self.names.get(pk, str(pk)), cells=cells)

    def _cell(self, pk: int, other: int) -> AgreementCell:
        if pk == other:
            return AgreementCell(text="–", step=None, title="")
        shared = self._shared.get((min(pk, other), max(pk, other)))
        if shared is None:
            return AgreementCell(text="", step=None, title=_("No comparison in common"), other=other)
        count = ngettext("%(count)s comparison in common", "%(count)s comparisons in common", shared.items)
        title = count % {"count": shared.items}
        if shared.items < FEWEST_SHARED:
            return AgreementCell(text=_("too few"), step=None, title=title, other=other)
        percent = round(100 * shared.share)
        return AgreementCell(
            text=number_format(percent), step=step_of(shared.share), title=title, other=other
        )


def signs_of(person: Person, people: Sequence[Person]) -> tuple[ShownSign, ...]:
    """Return the signs that a person's work deserves a look."""
    signs = []
    others = [
        other.recent_seconds for other in people if other.pk != person.pk and other.recent_seconds is not None
    ]
    if person.recent_seconds is not None and len(others) >= FEWEST_OTHERS:
        usual = median(others)
        if person.recent_seconds > SLOW * usual:
            text = _("Median %(seconds)s s in recent annotations; that of the others is %(usual)s s.")
            signs.append(
                ShownSign(
                    sign=PaceSign.SLOW,
                    text=text % {"seconds": round(person.recent_seconds), "usual": round(usual)},
                )
            )
    if person.unread.low is not None and person.unread.low > UNREAD_SHARE:
        text = _("%(share)s of the %(count)s newest annotations took less time than reading the responses.")
        signs.append(
            ShownSign(
                sign=PaceSign.FAST,
                text=text % {"share": written(person.unread.value, share=True), "count": person.unread.items},
            )
        )
    for change, text in (
        (person.agreement_change, _("Agreement with others changed by %(change)s (%(low)s to %(high)s).")),
        (person.gold_change, _("Gold accuracy changed by %(change)s (%(low)s to %(high)s).")),
    ):
        if change.high is not None and change.high < 0:
            figures = {"change": change.value, "low": change.low, "high": change.high}
            signs.append(
                ShownSign(
                    sign=PaceSign.DRIFTING,
                    text=text % {name: written(value, share=True) for name, value in figures.items()},
                )
            )
    return tuple(signs)


def step_of(share: float) -> int:
    """Return the step of colour of a share: fifths, the last with 1."""
    return min(int(share * STEPS), STEPS - 1)


def skips_by_annotator(project: Project, annotators: Collection[int]) -> dict[int, int]:
    """Return annotator → comparisons skipped. One query."""
    skipped = Assignment.objects.filter(
        annotator__in=list(annotators), state=AssignmentState.SKIPPED, comparison__project=project
    )
    return dict(skipped.order_by().values_list("annotator_id").annotate(Count("pk")))


def _with_kind(option: Option) -> str:
    """Return the label of a relation, its kind before the categories."""
    kind = SpanRelation(option.key.split(" ")[1])
    return f"{kind.label}: {option.label}"
