"""The table of a project's runs: columns, filters, order and best values, one page at a time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from django.core.paginator import Page, Paginator
from django.db.models import DurationField, ExpressionWrapper, F, FloatField, Max, Min, Q, QuerySet
from django.db.models.expressions import Combinable
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Cast, Coalesce, Now
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from annotation.models import Project
from training.choices import CheckpointKind, Method, RunState
from training.models import Run

# ── Columns ──


_RUNS_LOOKED_AT = 300
"""Newest runs whose metrics and settings are offered as columns."""
MOST_COLUMNS = 12


class Better(Enum):
    """The better end of a metric; None where neither is."""

    HIGHER = "higher"
    LOWER = "lower"
    NONE = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunColumn:
    """A column: a metric of the summary, a setting of the configuration, or a fact of the run."""

    key: str
    label: str | Promise
    kind: str
    """metric, setting or fact."""
    path: tuple[str, ...] = ()
    """Names that lead to the value in `summary` or `spec`."""
    better: Better = Better.NONE

    def value(self, run: Run) -> Any:
        """Return the value of a run; None where it has none."""
        if self.kind == "fact":
            return getattr(self, f"_{self.key}")(run)
        value: Any = run.summary if self.kind == "metric" else run.spec
        for name in self.path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def _duration(self, run: Run) -> Any:
        # annotated by `with_durations`
        return getattr(run, "duration", None)

    def _round(self, run: Run) -> int | None:
        step = getattr(run, "round_step", None)
        return step.round.number if step else None

    def _started(self, run: Run) -> Any:
        return run.started_at

    def order(self) -> Combinable:
        """Return the expression that orders runs by this column."""
        if self.kind == "fact":
            return F(_FACT_FIELDS[self.key])
        return _number(self) if self.kind == "metric" else _json(self)


_FACT_FIELDS = {"round": "round_step__round__number", "started": "started_at", "duration": "duration"}
FACTS = (
    RunColumn(key="round", label=_("Round"), kind="fact"),
    RunColumn(key="started", label=_("Started"), kind="fact"),
    RunColumn(key="duration", label=_("Duration"), kind="fact"),
)
SETTINGS = {
    "learning_rate": (_("Learning rate"), ("settings", "optimiser", "learning_rate")),
    "rank": (_("Adapter rank"), ("settings", "lora", "rank")),
    "batch_size": (_("Batch size"), ("settings", "optimiser", "batch_size")),
    "epochs": (_("Epochs"), ("settings", "optimiser", "epochs")),
    "seed": (_("Seed"), ("seed",)),
}
"""Settings with a name of their own; all others are called by their path."""
DEFAULTS = (
    *("held_out_accuracy", "held_out_log_loss", "held_out_reward", "reward", "kl", "loss"),
    *("learning_rate", "rank", "batch_size", "seed", "duration"),
)
HEADLINES = ("held_out_accuracy", "held_out_reward", "held_out_log_loss", "reward")
"""Metrics whose best runs are named above the table, in this order."""
_HIGHER = ("accuracy", "reward", "margin", "win_rate", "explained_variance", "auc", "correlation")
_LOWER = ("loss", "ece", "brier", "unfinished", "error")


def better_of(metric: str) -> Better:
    """Return the better end of a metric, by its name."""
    words = metric.replace("/", "_").split("_")
    if metric.endswith(("_low", "_high")):
        return Better.NONE
    if any(word in words for word in _LOWER):
        return Better.LOWER
    joined = "_".join(words)
    return Better.HIGHER if any(word in joined for word in _HIGHER) else Better.NONE


def is_objective(metric: str) -> bool:
    """Return whether a metric is a training loss: each method minimises another one."""
    words = metric.replace("/", "_").split("_")
    return "loss" in words and "log" not in words


def title_of(metric: str) -> str:
    """Return a metric's display name, such as Held-out log loss."""
    words = metric.replace("held_out", "held-out").replace("_", " ").replace("/", ", ").split(" ")
    words = ["KL" if word == "kl" else word for word in words]
    return " ".join([words[0][:1].upper() + words[0][1:], *words[1:]])


def offered_columns(runs: QuerySet[Run]) -> dict[str, RunColumn]:
    """Return the columns that these runs can have, by key: metrics, then settings, then facts."""
    metrics: dict[str, None] = {}
    settings: dict[tuple[str, ...], None] = {}
    for summary, spec in runs.order_by("-pk").values_list("summary", "spec")[:_RUNS_LOOKED_AT]:
        metrics |= dict.fromkeys(summary or ())
        settings |= dict.fromkeys(path for path, _value in leaves(spec) if path[0] in ("settings", "seed"))
    known = {path: (key, label) for key, (label, path) in SETTINGS.items()}
    columns = [
        RunColumn(key=name, label=title_of(name), kind="metric", path=(name,), better=better_of(name))
        for name in _first(HEADLINES, sorted(metrics))
    ]
    named = sorted(settings, key=lambda path: (path not in known, path))
    for path in named:
        key, label = known.get(path, (".".join(path[1:]), ".".join(path[1:]).replace("_", " ")))
        columns.append(RunColumn(key=key, label=label, kind="setting", path=path))
    by_key: dict[str, RunColumn] = {}
    for column in (*columns, *FACTS):
        by_key.setdefault(column.key, column)
    return by_key


def chosen_columns(offered: Mapping[str, RunColumn], keys: Sequence[str]) -> list[RunColumn]:
    """Return the columns of these keys, or those to begin with; unknown ones are left out."""
    chosen = [key for key in dict.fromkeys(keys) if key in offered]
    return [offered[key] for key in (chosen or DEFAULTS) if key in offered][:MOST_COLUMNS]


def with_durations(runs: QuerySet[Run]) -> QuerySet[Run]:
    """Return runs annotated with the time from start to end, or to now."""
    span = ExpressionWrapper(
        Coalesce(F("finished_at"), Now()) - F("started_at"), output_field=DurationField()
    )
    return runs.annotate(duration=span)


def best_values(runs: QuerySet[Run], columns: Iterable[RunColumn]) -> dict[str, float]:
    """Return the best value of each metric among runs, by key. One query."""
    sides = {Better.HIGHER: Max, Better.LOWER: Min}
    one_method = runs.order_by().values("method").distinct().count() <= 1
    ends = {
        f"best_{number}": (column.key, sides[column.better](_number(column)))
        for number, column in enumerate(columns)
        if column.kind == "metric" and column.better in sides and (one_method or not is_objective(column.key))
    }
    if not ends:
        return {}
    values = runs.order_by().aggregate(**{name: end for name, (_key, end) in ends.items()})
    return {key: values[name] for name, (key, _end) in ends.items() if values[name] is not None}


def best_runs(runs: QuerySet[Run], offered: Mapping[str, RunColumn]) -> list[tuple[RunColumn, Run, float]]:
    """Return the best run by each headline metric that occurs; of equals the newest."""
    best: list[tuple[RunColumn, Run, float]] = []
    for key in HEADLINES:
        column = offered.get(key)
        if column is None or column.kind != "metric":
            continue
        order = F("headline").desc() if column.better == Better.HIGHER else F("headline").asc()
        measured_runs = runs.annotate(headline=_number(column)).filter(headline__isnull=False)
        run = measured_runs.order_by(order, "-pk").first()
        if run is not None:
            best.append((column, run, column.value(run)))
    return best


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterable[tuple[tuple[str, ...], Any]]:
    """Yield path and value of everything in decoded JSON that is no object; an empty object is one value."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from leaves(inner, (*path, str(name)))
    else:
        yield path, value


def _first(preferred: Sequence[str], names: Sequence[str]) -> list[str]:
    return [
        *(name for name in preferred if name in names),
        *(name for name in names if name not in preferred),
    ]


def _number(column: RunColumn) -> Cast:
    return Cast(KeyTextTransform(column.path[0], "summary"), FloatField())


def _json(column: RunColumn) -> Combinable:
    value: Any = "spec"
    for name in column.path:
        value = KeyTransform(name, value)
    return value  # type: ignore[no-any-return]


# ── Rows ──


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
class RunCell:
    """A value of a run in a column; best among all that match."""

    column: RunColumn
    value: Any
    is_best: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTableRow:
    run: Run
    cells: Sequence[RunCell]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTable:
    """A page of runs with their columns."""

    page: Page[Run]
    rows: Sequence[RunTableRow]
    columns: Sequence[RunColumn]
    offered: Sequence[RunColumn]
    sort: str
    """Key of the column of the order, with a minus for the largest first; empty: newest first."""
    best: Sequence[tuple[RunColumn, Run, float]]
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
        rows=[RunTableRow(run=run, cells=_cells(run, shown, best)) for run in listed],
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


def _ordered(runs: QuerySet[Run], column: RunColumn | None, *, descending: bool) -> QuerySet[Run]:
    if column is None:
        return runs.order_by("-pk")
    runs = runs.annotate(order_value=column.order())
    value = F("order_value")
    return runs.order_by(value.desc(nulls_last=True) if descending else value.asc(nulls_last=True), "-pk")


def _cells(run: Run, columns: Sequence[RunColumn], best: dict[str, float]) -> list[RunCell]:
    cells = []
    for column in columns:
        value = column.value(run)
        is_best = column.key in best and value == best[column.key]
        cells.append(RunCell(column=column, value=value, is_best=is_best))
    return cells
