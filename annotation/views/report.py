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
    waits = bool(request.htmx) or "compute" in request.GET
    report = kept_report_of(project, selection)
    if report is None and not waits and is_large(project):
        context = {"project": project, "title": title, "styles": styles}
        return render(request, "annotation/statistics/computing.html", context)
    return report or report_of(project, selection)
