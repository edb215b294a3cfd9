"""The first-run page: start with an empty project, the starter or the demo. For administrators."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from annotation.errors import Refusal
from annotation.models import Project
from annotation.views.access import Request
from webapp import first_project
from webapp.demo import starting
from webapp.demo.project import SLUG


@never_cache
@require_safe
def start(request: Request) -> HttpResponse:
    """Offer the three ways to begin, and show the progress of the demo. For administrators."""
    _require_administrator(request)
    template = "operations/start_demo.html" if request.htmx else "operations/start.html"
    return render(request, template, _context())


@require_POST
def start_demo(request: Request) -> HttpResponse:
    """Have a worker create the demo project. For administrators."""
    _require_administrator(request)
    try:
        starting.start_demo()
    except Refusal as error:
        messages.error(request, str(error))
    return redirect("start")


@require_POST
def start_starter(request: Request) -> HttpResponse:
    """Create the first project, where there is none, and open it. For administrators."""
    _require_administrator(request)
    first_project.ensure_first_project()
    is_there = Project.objects.filter(slug=first_project.SLUG).exists()
    return redirect("project", first_project.SLUG) if is_there else redirect("start")


def _require_administrator(request: Request) -> None:
    if not request.user.is_superuser:
        raise PermissionDenied


def _context() -> dict[str, Any]:
    return {
        "progress": starting.progress(),
        "demo": SLUG,
        "starter": Project.objects.filter(slug=first_project.SLUG).first(),
        "has_projects": Project.objects.filter(is_incomplete=False).exists(),
    }
