"""The annotators of a project side by side: their work, and their agreement two by two."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count
from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from annotation.choices import AssignmentState, Role
from annotation.models import Assignment, Project, User
from annotation.statistics.page import Number, ReportPage
from annotation.statistics.report import Report, SharedAgreement

FEWEST_SHARED = 10
"""With fewer shared comparisons an agreement is not shown: its interval would cover most of the scale."""
MOST_IN_MAP = 30
"""So many annotators stand in the heat map: those with most annotations."""
STEPS = 5
"""Steps of colour, from no agreement to full."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
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
    cells: Sequence[Cell]


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
        self._shared = _by_pair(report.shared)

    @property
    def rows(self) -> list[AnnotatorRow]:
        """Every annotator by name. One query."""
        skips = skips_by_annotator(self.project, self.names)
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
                )
            )
        return rows

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

    def heat_of(self, pk: int) -> list[tuple[int, str, Cell]]:
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

    def _cell(self, pk: int, other: int) -> Cell:
        if pk == other:
            return Cell(text="–", step=None, title="")
        shared = self._shared.get((min(pk, other), max(pk, other)))
        if shared is None:
            return Cell(text="", step=None, title=_("No comparison in common"), other=other)
        count = ngettext("%(count)s comparison in common", "%(count)s comparisons in common", shared.items)
        title = count % {"count": shared.items}
        if shared.items < FEWEST_SHARED:
            return Cell(text=_("too few"), step=None, title=title, other=other)
        percent = round(100 * shared.share)
        return Cell(text=number_format(percent), step=step_of(shared.share), title=title, other=other)


def step_of(share: float) -> int:
    """Return the step of colour of a share: fifths, the last with 1."""
    return min(int(share * STEPS), STEPS - 1)


def skips_by_annotator(project: Project, annotators: Collection[int]) -> dict[int, int]:
    """Return annotator → comparisons skipped. One query."""
    skipped = Assignment.objects.filter(
        annotator__in=list(annotators), state=AssignmentState.SKIPPED, comparison__project=project
    )
    return dict(skipped.order_by().values_list("annotator_id").annotate(Count("pk")))


def _by_pair(shared: Sequence[SharedAgreement]) -> dict[tuple[int, int], SharedAgreement]:
    return {(agreement.first, agreement.second): agreement for agreement in shared}
