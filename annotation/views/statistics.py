"""Statistics of a project, and the comparisons behind each number."""

from collections.abc import Sequence

from django.core.paginator import Paginator
from django.db.models import BigIntegerField, Count, Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from annotation.agreement.records import Selection
from annotation.choices import Role
from annotation.forms.statistics import ItemsForm, SelectionForm
from annotation.models import Comparison, Project, User
from annotation.selectors.annotator_work import (
    annotations_by_day,
    counted,
    flags_by,
    gold_feedback_of,
    history_page,
    own_submitted_by,
    pace_of,
    skips_of,
    submitted_by,
)
from annotation.selectors.eligibility import daily_limit_of
from annotation.selectors.pastes import pastes_in
from annotation.selectors.reviews import open_returns_to
from annotation.services.quality import request_report
from annotation.statistics.cached import (
    is_large,
    items_are_cached,
    items_of,
    report_of,
    report_without_waiting,
)
from annotation.statistics.forecast import forecast_of
from annotation.statistics.page import AnnotatorsPage, ReportPage, pace_by_day, progress_by_round
from annotation.statistics.report import Report
from annotation.views.access import Request, project_page

_PASTES_SHOWN = 50

# The statistics' report for a page, which does not wait for a long computation.


def report_or_wait(
    request: Request,
    project: Project,
    selection: Selection,
    *,
    title: str | Promise,
    styles: Sequence[str] = ("css/statistics.css",),
) -> Report | HttpResponse:
    """Return the report, or the page that asks for the same address until a worker has computed it.

    Small projects never see that page. Without JavaScript it has a link that waits.
    """
    if "compute" in request.GET:
        return report_of(project, selection)
    report = report_without_waiting(project, selection, request=request_report)
    return report or computing(request, project, title=title, styles=styles)


def has_to_wait(request: Request, project: Project) -> bool:
    """Return True where figures take long and the page that waits for them is not shown yet."""
    return not request.htmx and "compute" not in request.GET and is_large(project)


def computing(
    request: Request,
    project: Project,
    *,
    title: str | Promise,
    styles: Sequence[str] = ("css/statistics.css",),
) -> HttpResponse:
    """Render the page that asks for the same address by itself."""
    context = {"project": project, "title": title, "styles": styles}
    return render(request, "annotation/statistics/computing.html", context)


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


# Annotators: everybody's own work, and for managers all annotators and each of them.

_STYLES = ("css/statistics.css", "css/comparison.css", "css/annotators.css")


@require_safe
@never_cache
@project_page(role=Role.ANNOTATOR)
def my_work(request: Request, project: Project) -> HttpResponse:
    """Show one's own annotations, pace, skips and flags. For members."""
    submitted = own_submitted_by(project, request.user)
    count, has_more = counted(submitted)
    gold = gold_feedback_of(project, request.user)
    context = {
        "project": project,
        "count": count,
        "has_more": has_more,
        "pace": pace_of(project, request.user),
        "daily_limit": daily_limit_of(project, request.membership),
        "days": pace_by_day(annotations_by_day(project, request.user)),
        "history": history_page(submitted, before=_before(request), is_own=True),
        "gold": gold,
        "gold_right": sum(gold.values()),
        "skips": skips_of(project, request.user),
        "flags": flags_by(project, request.user),
        "returned": open_returns_to(project, request.user) if project.has_returns else (),
    }
    return render(request, "annotation/annotators/my_work.html", context)


@require_safe
@project_page(role=Role.MANAGER)
def annotators(request: Request, project: Project) -> HttpResponse:
    """Show the work of all annotators, who waits, the forecast and their agreement. For managers."""
    report = report_or_wait(request, project, Selection(), title=_("Annotators"), styles=_STYLES)
    if isinstance(report, HttpResponse):
        return report
    context = {
        "project": project,
        "page": AnnotatorsPage(project, report),
        "forecast": forecast_of(project),
    }
    return render(request, "annotation/annotators/overview.html", context)


@require_safe
@project_page(role=Role.MANAGER)
def annotator(request: Request, project: Project, pk: int) -> HttpResponse:
    """Show one annotator's figures and annotations. For managers."""
    report = report_or_wait(request, project, Selection(), title=_("Annotator"), styles=_STYLES)
    if isinstance(report, HttpResponse):
        return report
    page = AnnotatorsPage(project, report)
    row = page.row_of(pk)
    if row is None:
        raise Http404
    person = get_object_or_404(User, pk=pk)
    context = {
        "project": project,
        "person": person,
        "row": row,
        "heat": page.heat_of(pk),
        "days": pace_by_day(annotations_by_day(project, person)),
        "history": history_page(submitted_by(project, person), before=_before(request)),
        "skips": skips_of(project, person),
        "flags": flags_by(project, person),
        "pastes": pastes_in(project, person)[:_PASTES_SHOWN] if project.records_pastes else (),
    }
    return render(request, "annotation/annotators/person.html", context)


def _before(request: HttpRequest) -> int | None:
    """Return the assignment in `?before=`; None for none."""
    text = request.GET.get("before", "")
    return int(text) if text.isdecimal() and int(text) <= BigIntegerField.MAX_BIGINT else None
