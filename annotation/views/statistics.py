"""Statistics of a project, and the comparisons behind each number."""

from django.core.paginator import Paginator
from django.db.models import Count, Q
from django.http import HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from annotation.choices import Role
from annotation.forms.statistics import ItemsForm, SelectionForm
from annotation.models import Comparison, Project
from annotation.statistics.cached import items_are_cached, items_of
from annotation.statistics.page import ReportPage, progress_by_round
from annotation.views.access import Request, project_page
from annotation.views.report import computing, has_to_wait, report_or_wait

_ON_A_PAGE = 50


@require_safe
@project_page(role=Role.MANAGER)
def statistics(request: Request, project: Project) -> HttpResponse:
    """Show progress, pace, cost, agreement, bias and reliability, of all or of a part. For managers."""
    form = SelectionForm(request.GET, project=project)
    report = report_or_wait(request, project, form.selection, title=_("Statistics"))
    if isinstance(report, HttpResponse):
        return report
    context = {
        "project": project,
        "form": form,
        "progress": progress_by_round(project),
        "page": ReportPage(project, report, form.people),
        "report": report,
        "round_columns": [_("Percent agreement"), _("Fleiss’ κ")],
        "people_columns": [_("Percent agreement"), _("Cohen’s κ"), _("Kendall’s τ-b")],
    }
    return render(request, "annotation/statistics/overview.html", context)


@require_safe
@project_page(role=Role.MANAGER)
def items(request: Request, project: Project) -> HttpResponse:
    """List the comparisons behind a number of the statistics. For managers."""
    form = ItemsForm(request.GET, project=project)
    if not items_are_cached(project, form.selection, form.shown) and has_to_wait(request, project):
        return computing(request, project, title=_("Comparisons"))
    pks = items_of(project, form.selection, form.shown)
    page = Paginator(pks, _ON_A_PAGE).get_page(request.GET.get("page"))
    standing = Q(judgments__superseded_by__isnull=True, judgments__isnull=False)
    comparisons = (
        Comparison.objects.filter(project=project)
        .select_related("prompt")
        .annotate(judged=Count("judgments", filter=standing))
        .in_bulk(list(page.object_list))
    )
    query = request.GET.copy()
    query.pop("page", None)
    way = query.copy()
    way["show"] = form.shown
    context = {
        "project": project,
        "form": form,
        "page": page,
        "comparisons": [comparisons[pk] for pk in page.object_list if pk in comparisons],
        "query": query.urlencode(),
        "way": way.urlencode(),
    }
    return render(request, "annotation/statistics/items.html", context)
