"""The statistics' report for a page, which does not wait for a long computation."""

from collections.abc import Sequence

from django.http import HttpResponse
from django.shortcuts import render
from django.utils.functional import Promise

from annotation.agreement.selection import Selection
from annotation.models import Project
from annotation.services.quality.agreement import request_report
from annotation.statistics.cached import is_large, report_of, report_without_waiting
from annotation.statistics.report import Report
from annotation.views.access import Request


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
