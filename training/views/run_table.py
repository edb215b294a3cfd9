"""A project's runs as a table, and some of them beside each other."""

from urllib.parse import urlencode

from django.http import HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_safe

from annotation.choices import Role
from annotation.models import Project
from annotation.views.access import Request, project_page
from training.forms.runs import RunFilterForm
from training.selectors.run_columns import MOST_COLUMNS, Column
from training.selectors.run_comparison import MOST_COMPARED, comparison_of, runs_to_compare
from training.selectors.run_table import RunTable, rounds_of_runs, run_table, tags_of_runs
from training.selectors.runs import metrics_of

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
    chosen = urlencode([*form.query.items(), *shown])
    context = {
        "project": project,
        "form": form,
        "table": table,
        "headings": [(column, *_order(column, table)) for column in table.columns],
        "chosen": chosen,
        "query": urlencode([*form.query.items(), *shown, *([("sort", table.sort)] if table.sort else [])]),
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


def _order(column: Column, table: RunTable) -> tuple[str, str]:
    """Return the `sort` of a click on a column's heading, and the order that it has now, as ARIA says it."""
    if table.sort == f"-{column.key}":
        return column.key, "descending"
    if table.sort == column.key:
        return f"-{column.key}", "ascending"
    return f"-{column.key}", ""
