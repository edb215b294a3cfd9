"""A checkpoint against its parent: a page, and one file that can be mailed."""

from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from annotation.views.access import Request
from training.models import Checkpoint
from training.selectors.access import require_manager
from training.selectors.evaluation_report import Report, report_file, report_of

_ROWS_ON_THE_PAGE = 20


@require_safe
def evaluation(request: Request, name: str) -> HttpResponse:
    """Show a checkpoint's evaluation against its parent, largest regressions first. For managers."""
    report = _report(request, name)
    context = {
        "report": report,
        "project": report.evaluation.round.project,
        "rows": report.rows[:_ROWS_ON_THE_PAGE],
        "rows_left_out": max(0, len(report.rows) - _ROWS_ON_THE_PAGE),
    }
    return render(request, "training/evaluation.html", context)


@require_safe
def evaluation_file(request: Request, name: str) -> HttpResponse:
    """The report as one HTML file without script and without anything to fetch. For managers."""
    response = HttpResponse(report_file(_report(request, name)), content_type="text/html; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}-evaluation.html"'
    return response


def _report(request: Request, name: str) -> Report:
    checkpoint = get_object_or_404(Checkpoint.objects.select_related("project"), name=name)
    require_manager(request.user, checkpoint.project)
    report = report_of(checkpoint)
    if report is None:
        raise Http404
    return report
