"""Drift of a project: reward models against people, round by round, and the judgments behind each number."""

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from annotation.choices import Role
from annotation.errors import Refusal
from annotation.models import Project
from annotation.views.access import Request, project_page
from training.choices import CheckpointKind
from training.models import Checkpoint, DriftFigure, DriftMeasurement
from training.selectors.drift import drift_page, items_behind, items_of
from training.services.drift import request_measurement

_ITEMS_ON_A_PAGE = 25


@require_safe
@project_page(role=Role.MANAGER)
def drift(request: Request, project: Project) -> HttpResponse:
    """The matrix and the plots as they were last measured. For managers."""
    context = {"project": project, "page": drift_page(project)}
    return render(request, "training/drift.html", context)


@require_POST
@project_page(role=Role.MANAGER)
def measure(request: Request, project: Project) -> HttpResponse:
    """Have it measured anew. For managers."""
    try:
        request_measurement(project=project, requested_by=request.user)
    except Refusal as refusal:
        messages.error(request, refusal.message)
    return redirect("drift", slug=project.slug)


@require_safe
@project_page(role=Role.MANAGER)
def progress(request: Request, project: Project) -> HttpResponse:
    """Show the progress of the measurement: a fragment that reloads itself until it ends, then the page.
    For managers."""
    measurement = DriftMeasurement.objects.filter(project=project).order_by("-pk").first()
    answer = render(request, "training/drift_progress.html", {"project": project, "measurement": measurement})
    if request.htmx and (measurement is None or not measurement.goes_on):
        answer["HX-Refresh"] = "true"
    return answer


@require_safe
@project_page(role=Role.MANAGER)
def items(request: Request, project: Project, name: str, number: int) -> HttpResponse:
    """The judgments behind a number of the matrix, beside what the reward model says. For managers."""
    reward = get_object_or_404(
        Checkpoint.objects.select_related("run__snapshot", "project"),
        name=name,
        project=project,
        kind=CheckpointKind.REWARD,
    )
    page = Paginator(items_behind(reward, number), _ITEMS_ON_A_PAGE).get_page(request.GET.get("page"))
    context = {
        "project": project,
        "reward": reward,
        "number": number,
        "page": page,
        "items": items_of(reward, list(page)),
        "figure": DriftFigure.objects.filter(checkpoint=reward, round_number=number).first(),
    }
    return render(request, "training/drift_items.html", context)
