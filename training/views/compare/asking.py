"""Asking: the form, the first question, the next turn of a conversation."""

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from annotation.errors import Refusal
from annotation.views.access import Request
from training.engine import Engine, EngineError
from training.forms import CompareForm
from training.models import SideBySide
from training.selectors import managed_projects
from training.services.side_by_side import ask_beside, continue_beside, write_answers
from training.views.compare.access import asked_project, stored, trouble_of

_LATEST = 20


@require_safe
def compare(request: Request) -> HttpResponse:
    """The form, and what was asked last. For managers."""
    project = asked_project(request, request.GET.get("project"))
    form = CompareForm(project=project, initial=request.GET.dict()) if project else None
    with Engine() as engine:
        health = engine.health(timeout=1.0)
    latest = project.side_by_sides.select_related("created_by")[:_LATEST] if project else ()
    context = {
        "project": project,
        "projects": managed_projects(request.user),
        "form": form,
        "health": health,
        "latest": latest,
    }
    return render(request, "training/compare.html", context)


@require_POST
def compare_answer(request: Request) -> HttpResponse:
    """Ask, and go to the page with the answers, which stays. For managers.

    With `stream` the page has the answers written as one watches; without it they are written first.
    """
    project = asked_project(request, request.POST.get("project"))
    if project is None:
        raise Http404
    form = CompareForm(request.POST, project=project)
    if form.is_valid():
        try:
            made = ask_beside(
                project=project,
                created_by=request.user,
                checkpoints=form.checkpoints,
                question=form.question,
                sampling=form.sampling,
                seed=form.cleaned_data["seed"],
                scorer=form.cleaned_data["reward"],
                blind=not form.cleaned_data["unblinded"],
            )
        except Refusal as refusal:
            form.add_error(refusal.field if refusal.field in form.fields else None, refusal.message)
        else:
            return _go_to(request, made)
    context = {"project": project, "projects": managed_projects(request.user), "form": form}
    return render(request, "training/compare.html", context)


@require_POST
def compare_continue(request: Request, slug: str) -> HttpResponse:
    """The next turn, after one of the answers or each after its own. For managers."""
    shown = stored(request, slug)
    after = request.POST.get("after", "")
    try:
        made = continue_beside(
            shown=shown,
            created_by=request.user,
            text=request.POST.get("text", ""),
            position=int(after) if after.isdigit() else None,
        )
    except Refusal as refusal:
        messages.error(request, refusal.message)
        return redirect(shown)
    return _go_to(request, made)


def _go_to(request: Request, made: SideBySide) -> HttpResponse:
    """The page; where no script will have the answers written, they are written now."""
    if not request.POST.get("stream"):
        try:
            write_answers(shown=made)
        except EngineError as error:
            messages.error(request, trouble_of(error, hidden=made.is_hidden))
    return redirect(made)
