"""Annotators: everybody's own work, and for managers all annotators and each of them."""

from django.db.models import BigIntegerField
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from annotation.agreement.selection import Selection
from annotation.choices import Role
from annotation.models import Project, User
from annotation.selectors.annotator_work import (
    annotations_by_day,
    counted,
    flags_by,
    gold_feedback_of,
    history_page,
    own_submitted_by,
    skips_of,
    submitted_by,
)
from annotation.selectors.eligibility import daily_limit_of
from annotation.selectors.own_work import pace_of
from annotation.statistics.annotators import AnnotatorsPage
from annotation.statistics.page import pace_by_day
from annotation.views.access import Request, project_page
from annotation.views.report import report_or_wait

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
        "history": history_page(submitted, before=_before(request)),
        "gold": gold,
        "gold_right": sum(gold.values()),
        "skips": skips_of(project, request.user),
        "flags": flags_by(project, request.user),
    }
    return render(request, "annotation/annotators/my_work.html", context)


@require_safe
@project_page(role=Role.MANAGER)
def annotators(request: Request, project: Project) -> HttpResponse:
    """Show the work of all annotators and their agreement two by two. For managers."""
    report = report_or_wait(request, project, Selection(), title=_("Annotators"), styles=_STYLES)
    if isinstance(report, HttpResponse):
        return report
    page = AnnotatorsPage(project, report)
    return render(request, "annotation/annotators/overview.html", {"project": project, "page": page})


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
    }
    return render(request, "annotation/annotators/person.html", context)


def _before(request: HttpRequest) -> int | None:
    """Return the assignment in `?before=`; None for none."""
    text = request.GET.get("before", "")
    return int(text) if text.isdecimal() and int(text) <= BigIntegerField.MAX_BIGINT else None
