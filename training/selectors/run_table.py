"""The table of a project's runs: filters, order, columns and best values, one page at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.core.paginator import Page, Paginator
from django.db.models import F, Q, QuerySet

from annotation.models import Project
from training.choices import CheckpointKind, Method, RunState
from training.models import Run
from training.selectors.run_columns import (
    Column,
    best_runs,
    best_values,
    chosen_columns,
    offered_columns,
    with_durations,
)

RUNS_PER_PAGE = 50
_LARGEST_ROUND = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilters:
    """Filters of runs; an empty one does not apply."""

    text: str = ""
    """Part of the name or the notes."""
    method: str = ""
    state: str = ""
    kind: str = ""
    """policy or reward."""
    round: int | None = None
    tag: str = ""

    def __bool__(self) -> bool:
        return bool(self.text or self.method or self.state or self.kind or self.round or self.tag)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A value of a run in a column; best among all that match."""

    column: Column
    value: Any
    is_best: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run in the table."""

    run: Run
    cells: Sequence[Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTable:
    """A page of runs with their columns."""

    page: Page[Run]
    rows: Sequence[Row]
    columns: Sequence[Column]
    offered: Sequence[Column]
    sort: str
    """Key of the column of the order, with a minus for the largest first; empty: newest first."""
    best: Sequence[tuple[Column, Run, float]]
    """The best run of each headline metric."""


def runs_of_project(project: Project, filters: RunFilters = RunFilters()) -> QuerySet[Run]:
    """Return the runs of a project that match, newest first."""
    runs = Run.objects.filter(snapshot__project=project)
    if filters.method in Method.values:
        runs = runs.filter(method=filters.method)
    if filters.state in RunState.values:
        runs = runs.filter(state=filters.state)
    if filters.kind in (CheckpointKind.POLICY, CheckpointKind.REWARD):
        is_reward = Q(method=Method.REWARD)
        runs = runs.filter(is_reward if filters.kind == CheckpointKind.REWARD else ~is_reward)
    if filters.round is not None:
        runs = runs.filter(round_step__round__number=min(filters.round, _LARGEST_ROUND))
    if filters.text:
        runs = runs.filter(Q(name__icontains=filters.text) | Q(notes__icontains=filters.text))
    if filters.tag:
        # Not every database searches JSON lists: the few tagged ones are filtered here.
        tagged = Run.objects.filter(snapshot__project=project).exclude(tags=[]).values_list("pk", "tags")
        runs = runs.filter(pk__in=[pk for pk, tags in tagged if filters.tag in tags])
    return runs.order_by("-pk")


def run_table(
    project: Project, *, filters: RunFilters, columns: Sequence[str], sort: str, page: str | None
) -> RunTable:
    """Return a page of a project's runs. Unknown columns, orders and pages are replaced by the first ones."""
    everything = runs_of_project(project)
    offered = offered_columns(everything)
    shown = chosen_columns(offered, columns)
    matching = runs_of_project(project, filters)
    key = sort.removeprefix("-")
    if key not in offered:
        sort = ""
    ordered = _ordered(with_durations(matching), offered.get(key), descending=sort.startswith("-"))
    related = ("round_step__round", "checkpoint", "snapshot")
    listed = Paginator(ordered.select_related(*related), RUNS_PER_PAGE).get_page(page)
    best = best_values(matching, shown)
    return RunTable(
        page=listed,
        rows=[Row(run=run, cells=_cells(run, shown, best)) for run in listed],
        columns=shown,
        offered=list(offered.values()),
        sort=sort,
        best=best_runs(everything, offered),
    )


def tags_of_runs(project: Project) -> list[str]:
    """Return all tags of a project's runs, sorted."""
    listed = Run.objects.filter(snapshot__project=project).exclude(tags=[]).values_list("tags", flat=True)
    return sorted({tag for tags in listed for tag in tags})


def rounds_of_runs(project: Project) -> list[int]:
    """Return the numbers of the rounds that have runs, newest first."""
    numbers = Run.objects.filter(snapshot__project=project, round_step__isnull=False)
    round_numbers = numbers.order_by().values_list("round_step__round__number", flat=True).distinct()
    return sorted(round_numbers, reverse=True)


def _ordered(runs: QuerySet[Run], column: Column | None, *, descending: bool) -> QuerySet[Run]:
    if column is None:
        return runs.order_by("-pk")
    runs = runs.annotate(order_value=column.order())
    value = F("order_value")
    return runs.order_by(value.desc(nulls_last=True) if descending else value.asc(nulls_last=True), "-pk")


def _cells(run: Run, columns: Sequence[Column], best: dict[str, float]) -> list[Cell]:
    cells = []
    for column in columns:
        value = column.value(run)
        is_best = column.key in best and value == best[column.key]
        cells.append(Cell(column=column, value=value, is_best=is_best))
    return cells
