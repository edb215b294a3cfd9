"""Lessons: the list, one lesson with its runs, a project's class."""

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from annotation.choices import Role
from annotation.models import Project
from annotation.selectors.access import projects_for
from annotation.views.access import Request, project_page, refusals_shown
from training.contract.course import BY_SLUG, LESSONS, Lesson
from training.selectors.course import class_of, lesson_view, lessons_of
from training.services.course import request_run, stop_runs


@require_safe
def course(request: Request) -> HttpResponse:
    """List the lessons and what the reader has passed. For everyone with an account."""
    lessons = lessons_of(request.user)
    passed = sum(at is not None for _lesson, at in lessons)
    return render(
        request, "training/course/list.html", {**_place(request), "lessons": lessons, "passed": passed}
    )


@require_safe
def lesson(request: Request, slug: str) -> HttpResponse:
    """Show a lesson: its idea, equation and source, the reader's runs, the check.

    For everyone with an account."""
    return render(
        request,
        "training/course/lesson.html",
        {**_place(request), "view": lesson_view(_lesson(slug), request.user)},
    )


@require_safe
def live(request: Request, slug: str) -> HttpResponse:
    """The last run of a form of a lesson: a fragment that reloads itself until it ends, then the page.

    For everyone with an account."""
    view = lesson_view(_lesson(slug), request.user)
    form = "broken" if request.GET.get("form") == "broken" else "plain"
    shown = view.broken if form == "broken" else view.plain
    context = {**_place(request), "view": view, "form": form, "shown": shown}
    response = render(request, "training/course/run.html", context)
    if request.htmx and (shown is None or not shown.run.goes_on):
        response["HX-Refresh"] = "true"
    return response


@require_POST
def start(request: Request, slug: str) -> HttpResponse:
    """Run a lesson, as it is or broken. For everyone with an account."""
    with refusals_shown(request):
        request_run(
            lesson=_lesson(slug), learner=_learner(request), broken=request.POST.get("form") == "broken"
        )
    return _back(request, slug)


@require_POST
def stop(request: Request, slug: str) -> HttpResponse:
    """Stop the reader's runs of a lesson. For everyone with an account."""
    stop_runs(lesson=_lesson(slug), learner=_learner(request))
    return _back(request, slug)


@require_safe
@project_page(role=Role.MANAGER)
def class_view(request: Request, project: Project) -> HttpResponse:
    """Show which member of a project has passed which lesson. For managers."""
    context = {
        "project": project,
        "query": f"?project={project.slug}",
        "lessons": LESSONS,
        "rows": class_of(project),
    }
    return render(request, "training/course/class.html", context)


def _learner(request: Request) -> Any:
    # Somebody from a recruiting service is there for one task.
    if request.user.is_participant:
        raise PermissionDenied
    return request.user


def _lesson(slug: str) -> Lesson:
    if slug not in BY_SLUG:
        raise Http404
    return BY_SLUG[slug]


def _place(request: Request) -> dict[str, object]:
    """Return the project whose sidebar stays beside the lessons, and what its addresses end with."""
    _learner(request)
    project = projects_for(request.user).filter(slug=request.GET.get("project", "")).first()
    return {"project": project, "query": f"?project={project.slug}" if project else ""}


def _back(request: Request, slug: str) -> HttpResponse:
    project = _place(request)["query"]
    return redirect(f"{reverse('lesson', args=[slug])}{project}#runs")
