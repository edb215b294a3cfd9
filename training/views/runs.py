"""Pages of runs: the table, one run, its downloads."""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import BigIntegerField
from django.http import (
    Http404,
    HttpResponse,
    HttpResponseBase,
    HttpResponseNotModified,
    JsonResponse,
    StreamingHttpResponse,
)
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST, require_safe

from annotation.choices import Role
from annotation.errors import Refusal
from annotation.forms import offer
from annotation.models import Completion, Project
from annotation.selectors.access import projects_for
from annotation.text.rendering import render_markdown
from annotation.views.access import Request, project_page
from training.choices import CheckpointKind, Method, RunState
from training.contract.run import read_evaluation
from training.figures.curves import MOST_LINES
from training.figures.held_out import held_out_of
from training.files.shared import folder_of
from training.models import Run, Snapshot
from training.selectors.evaluations import run_baselines, run_choice, run_people, run_validation
from training.selectors.projects import (
    judgments_in,
    judgments_of,
    placed_candidates,
    request_of,
    require_manager,
)
from training.selectors.run_table import (
    MOST_COLUMNS,
    RunColumn,
    RunFilters,
    RunTable,
    rounds_of_runs,
    run_table,
    tags_of_runs,
)
from training.selectors.runs import (
    IS_GOING_ON,
    MEASURES,
    MOST_COMPARED,
    comparison_of,
    dropped_of,
    headline_figures_of,
    is_interrupted,
    launches_of,
    log_lines_of,
    machine_of,
    metrics_of,
    news_of,
    overlaid_on,
    overlay_choices,
    rewards_of,
    runs_to_compare,
    samples_of,
    state_mark,
    watch_warnings_of,
)
from training.services.checkpoints import describe_run
from training.services.runs.files import archive_of, events_of

# Form of the filters of a project's runs.


class RunFilterForm(forms.Form):
    """Filters of runs. Unreadable values count as left out."""

    text = forms.CharField(
        required=False,
        max_length=200,
        label=gettext_lazy("Name or notes"),
        widget=forms.TextInput(attrs={"type": "search"}),
    )
    kind = forms.ChoiceField(
        required=False,
        label=gettext_lazy("Kind"),
        choices=[
            ("", gettext_lazy("All kinds")),
            (CheckpointKind.REWARD, CheckpointKind.REWARD.label),
            (CheckpointKind.POLICY, CheckpointKind.POLICY.label),
        ],
    )
    method = forms.ChoiceField(
        required=False,
        label=gettext_lazy("Method"),
        choices=[("", gettext_lazy("All methods")), *Method.choices],
    )
    state = forms.ChoiceField(
        required=False,
        label=gettext_lazy("State"),
        choices=[("", gettext_lazy("All states")), *RunState.choices],
    )
    round = forms.TypedChoiceField(required=False, label=gettext_lazy("Round"), coerce=int, empty_value=None)
    tag = forms.ChoiceField(required=False, label=gettext_lazy("Tag"))

    def __init__(self, data: Mapping[str, Any], *, rounds: Sequence[int], tags: Sequence[str]) -> None:
        super().__init__(data)
        offer(
            self,
            "round",
            [("", gettext_lazy("All rounds")), *((str(number), str(number)) for number in rounds)],
        )
        offer(self, "tag", [("", gettext_lazy("All tags")), *((tag, tag) for tag in tags)])
        if not rounds:
            del self.fields["round"]
        if not tags:
            del self.fields["tag"]
        self.is_valid()

    @property
    def filters(self) -> RunFilters:
        """The filters that are meant."""
        return RunFilters(**{name: value for name, value in self.cleaned_data.items() if value})

    @property
    def query(self) -> dict[str, str]:
        """The filters as a part of an address."""
        return {name: str(value) for name, value in self.cleaned_data.items() if value}


# ── Runs ──

# ── Run ──


_LONGEST_SEARCH = 200


@require_safe
def run(request: Request, pk: int) -> HttpResponse:
    """One training job: its curves beside those of other runs, its log, its configuration. For managers."""
    return _page(request, _run(request, pk))


def _page(request: Request, run: Run, *, status: int = 200, **more: object) -> HttpResponse:
    overlays = overlaid_on(run, request.GET.getlist("with"))
    colour, step = request.GET.get("colour"), request.GET.get("step", "")
    measure = next((name for name in MEASURES if name == colour), MEASURES[0])
    report = read_evaluation(folder_of(run))
    metrics, is_behind = metrics_of([run, *overlays])
    context = {
        **_live(run),
        "metrics": metrics,
        "is_behind": is_behind,
        "shown": [run, *overlays],
        "choices": overlay_choices(run, overlays),
        "most_beside": MOST_LINES - 1,
        "samples": samples_of(run, step=int(step) if step.isdecimal() else None, measure=measure),
        "watch_warnings": watch_warnings_of(run),
        "held_out": held_out_of(report),
        "validation": run_validation(run, report),
        "baselines": run_baselines(run, report),
        "choice": run_choice(run, report),
        "people": run_people(run, report),
        "dropped": dropped_of(run),
        "rewards": rewards_of(run),
        "spec": json.dumps(run.spec, indent=2, ensure_ascii=False),
        "entered": {"tags": ", ".join(run.tags), "notes": run.notes},
        "notes": render_markdown(run.notes),
        **_log(request, run),
        **more,
    }
    return render(request, "training/run.html", context, status=status)


@require_safe
def live(request: Request, pk: int) -> HttpResponse:
    """Show the live part of a run's page: state, machine, end of the log; 304 as long as nothing changed.
    For managers."""
    run = _run(request, pk)
    mark = f'"{state_mark(run)}"'
    if request.headers.get("If-None-Match") == mark:
        answer: HttpResponse = HttpResponseNotModified()
    else:
        answer = render(request, "training/run_live.html", _live(run))
    answer["ETag"] = mark
    answer["Cache-Control"] = "private, no-cache"
    return answer


@require_safe
def log(request: Request, pk: int) -> HttpResponse:
    """Show the end of a run's log, or its last lines that contain a text. For managers."""
    run = _run(request, pk)
    answer = render(request, "training/run_log.html", _log(request, run))
    answer["Cache-Control"] = "private, no-store"
    return answer


@require_POST
def describe(request: Request, pk: int) -> HttpResponse:
    """Give a run other tags and notes. For managers."""
    run = _run(request, pk)
    tags, notes = request.POST.get("tags", ""), request.POST.get("notes", "").replace("\r\n", "\n")
    try:
        describe_run(run=run, tags=tags.split(","), notes=notes, described_by=request.user)
    except Refusal as refusal:
        return _page(request, run, status=422, entered={"tags": tags, "notes": notes, "refusal": refusal})
    messages.success(request, _("Saved."))
    return redirect(f"{run.get_absolute_url()}#notes")


@require_safe
def curves(request: Request, pk: int) -> JsonResponse:
    """Return new metrics of a run and those drawn beside it since the marks `since`. For managers."""
    run = _run(request, pk)
    runs = [run, *overlaid_on(run, request.GET.getlist("with"))]
    answer = JsonResponse(news_of(runs, marks=request.GET.getlist("since")))
    answer["Cache-Control"] = "private, no-store"
    return answer


@require_safe
def download(request: Request, pk: int) -> HttpResponseBase:
    """Everything in a run's folder as a ZIP archive, without secrets. For managers."""
    run = _run(request, pk)
    name, stream = archive_of(run)
    return _attached(StreamingHttpResponse(stream, content_type="application/zip"), name)


@require_safe
def tensorboard(request: Request, pk: int) -> HttpResponseBase:
    """A run's metrics as an event file for TensorBoard. For managers."""
    run = _run(request, pk)
    name, stream = events_of(run)
    return _attached(StreamingHttpResponse(stream, content_type="application/octet-stream"), name)


def _run(request: Request, pk: int) -> Run:
    related = ("snapshot__project", "parent", "checkpoint", "round_step__round__project")
    run = get_object_or_404(Run.objects.select_related(*related), pk=pk)
    require_manager(request.user, run.snapshot.project)
    return run


def _live(run: Run) -> dict[str, object]:
    return {
        "project": run.snapshot.project,
        "run": run,
        "goes_on": run.state in IS_GOING_ON,
        "interrupted": is_interrupted(run),
        "machine": machine_of(run),
        "headlines": headline_figures_of(run),
        "launches": launches_of(run),
    }


def _log(request: Request, run: Run) -> dict[str, object]:
    text = request.GET.get("log", "").strip()[:_LONGEST_SEARCH]
    return {"run": run, "log": log_lines_of(run, text), "goes_on": run.state in IS_GOING_ON}


def _attached(answer: HttpResponseBase, name: str) -> HttpResponseBase:
    """An answer that a browser saves under `name`: a checkpoint's or run's, so of plain characters."""
    answer["Content-Disposition"] = f'attachment; filename="{name}"'
    answer["X-Accel-Buffering"] = "no"
    return answer


# ── Table ──


_MOST_COLUMNS_SENT = 100


@require_safe
@project_page(role=Role.MANAGER)
def runs(request: Request, project: Project) -> HttpResponse:
    """List a project's runs with chosen metrics and settings, filtered and in any order. For managers."""
    form = RunFilterForm(request.GET, rounds=rounds_of_runs(project), tags=tags_of_runs(project))
    columns = [key for key in request.GET.getlist("col")[:_MOST_COLUMNS_SENT] if key]
    table = run_table(
        project,
        filters=form.filters,
        columns=columns,
        sort=request.GET.get("sort", ""),
        page=request.GET.get("page"),
    )
    shown = [("col", column.key) for column in table.columns] if columns else []
    chosen = [*form.query.items(), *shown]
    headings = ((column, *_order(column, table)) for column in table.columns)
    context = {
        "project": project,
        "form": form,
        "table": table,
        "headings": [
            (column, f"{request.path}?{urlencode([*chosen, ('sort', sort)])}", order)
            for column, sort, order in headings
        ],
        "query": urlencode([*chosen, *([("sort", table.sort)] if table.sort else [])]),
        "shown_keys": [column.key for column in table.columns],
        "most_columns": MOST_COLUMNS,
        "most_compared": MOST_COMPARED,
    }
    template = "training/runs_table.html" if request.htmx else "training/runs.html"
    answer = render(request, template, context)
    patch_vary_headers(answer, ["HX-Request"])
    return answer


@require_safe
@project_page(role=Role.MANAGER)
def compare(request: Request, project: Project) -> HttpResponse:
    """Show two to six runs beside each other: configurations, metrics, curves. For managers."""
    chosen = runs_to_compare(project, request.GET.getlist("run"))
    everything = request.GET.get("all") == "1"
    context: dict[str, object] = {
        "project": project,
        "most_compared": MOST_COMPARED,
        "all_settings": everything,
        "address": urlencode([("run", str(run.pk)) for run in chosen]),
    }
    if len(chosen) > 1:
        metrics, is_behind = metrics_of(chosen)
        context |= {
            "comparison": comparison_of(chosen, all_settings=everything),
            "run": chosen[0],
            "shown": chosen,
            "metrics": metrics,
            "is_behind": is_behind,
        }
    return render(request, "training/runs_compare.html", context)


def _order(column: RunColumn, table: RunTable) -> tuple[str, str]:
    """Return the `sort` of a click on a column's heading, and the order that it has now, as ARIA says it."""
    if table.sort == f"-{column.key}":
        return column.key, "descending"
    if table.sort == column.key:
        return f"-{column.key}", "ascending"
    return f"-{column.key}", ""


# Training data: a snapshot with its judgments, and a completion with its provenance.

_ROWS_ON_A_PAGE = 50


@require_safe
def snapshot(request: Request, digest: str) -> HttpResponse:
    """One snapshot with every judgment in it, page by page or at `?judgment=`. For managers."""
    snapshots = Snapshot.objects.filter(digest=digest, project__in=projects_for(request.user))
    snapshot = snapshots.select_related("project", "created_by").first()
    if snapshot is None:
        raise Http404
    require_manager(request.user, snapshot.project)
    number = _page_with(snapshot, request.GET.get("judgment", "")) or request.GET.get("page")
    page = Paginator(judgments_in(snapshot), _ROWS_ON_A_PAGE).get_page(number)
    context = {
        "project": snapshot.project,
        "snapshot": snapshot,
        "page": page,
        "rows": [(judgment, placed_candidates(judgment)) for judgment in page],
        "runs": snapshot.runs.order_by("pk"),
    }
    return render(request, "training/snapshot.html", context)


def _page_with(snapshot: Snapshot, judgment: str) -> int | None:
    """Return the number of the page on which a judgment stands; None for none."""
    if not judgment.isdecimal() or int(judgment) > BigIntegerField.MAX_BIGINT:
        return None
    return snapshot.judgments.filter(pk__lt=int(judgment)).count() // _ROWS_ON_A_PAGE + 1


@require_safe
def completion(request: Request, pk: int) -> HttpResponse:
    """One answer: who wrote it, with which seed, and how to have it written again. For managers."""
    related = ("prompt__project", "source__checkpoint")
    completion = get_object_or_404(Completion.objects.select_related(*related), pk=pk)
    require_manager(request.user, completion.prompt.project)
    body = request_of(completion)
    context = {
        "project": completion.prompt.project,
        "completion": completion,
        "writer": getattr(completion.source, "checkpoint", None),
        "places": judgments_of(completion)[:_ROWS_ON_A_PAGE],
        "request_body": json.dumps(body, indent=2, ensure_ascii=False) if body else "",
        "server": settings.RONDO_MODEL_SERVER_URL,
    }
    return render(request, "training/completion.html", context)
