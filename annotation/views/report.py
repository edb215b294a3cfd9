"""The statistics' report for a page, which does not wait for a long computation."""

from collections.abc import Sequence

from django.http import HttpResponse
from django.shortcuts import render
from django.utils.functional import Promise

from annotation.agreement.selection import Selection
from annotation.models import Project
from annotation.statistics.cached import is_large, kept_report_of, report_of
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
    """Return the report, or the page that asks for the same address by itself and has the report then.

    Small projects never see that page. Without JavaScript it has a link that waits.
    """
    report = kept_report_of(project, selection)
    if report is None and has_to_wait(request, project):
        return computing(request, project, title=title, styles=styles)
    return report or report_of(project, selection)


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
