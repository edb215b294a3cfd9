"""Live parts of a project's overview."""

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from annotation.agreement.records import Selection
from annotation.choices import Role
from annotation.models import Project
from annotation.statistics.cached import cached_report_of, is_large, report_of
from annotation.statistics.page import ReportPage, cost_of
from annotation.views.access import Request, project_page
from training.selectors.dashboard import dashboard_of
from training.selectors.lists import reward_accuracy


@require_safe
@project_page(role=Role.MANAGER)
def dashboard(request: Request, project: Project) -> HttpResponse:
    """Show counts around the loop, annotations by day, the next step and the last rounds. For managers."""
    context = {"project": project, "dashboard": dashboard_of(project)}
    return render(request, "training/dashboard/live.html", context)


@require_safe
@project_page(role=Role.MANAGER)
def quality(request: Request, project: Project) -> HttpResponse:
    """Show agreement, position bias, time, cost, and accuracy of reward models. For managers."""
    report = cached_report_of(project, Selection())
    if report is None and is_large(project):
        # It takes minutes: the page of the statistics says so, and computes it.
        return render(request, "training/dashboard/no_quality.html", {"project": project})
    report = report or report_of(project, Selection())
    context = {
        "project": project,
        "report": report,
        "page": ReportPage(project, report, {}),
        "reward": reward_accuracy(project, report),
        "cost": cost_of(project, report),
    }
    return render(request, "training/dashboard/quality.html", context)
