"""A round's page: where it is, live, and the buttons that start, cancel and resume it."""

import json
from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from annotation.choices import Role
from annotation.errors import Refusal
from annotation.models import Project
from annotation.views.access import Request, project_page
from training.models import Round
from training.selectors import material_of, round_view
from training.services.rounds import cancel_round, reopen_round, start_again, start_round


@require_safe
@project_page(role=Role.MANAGER)
def round_page(request: Request, project: Project, number: int) -> HttpResponse:
    """The round with its steps, judgments and recipe. For managers."""
    round_ = _round(project, number)
    context = {
        "material": material_of(round_),
        "rounds": project.rounds.order_by("number"),
        "recipe": json.dumps(round_.recipe, indent=2),
        **progress_context(round_),
    }
    return render(request, "training/round.html", context)


@require_safe
@project_page(role=Role.MANAGER)
def progress(request: Request, project: Project, number: int) -> HttpResponse:
    """The part of the page that changes by itself; it asks for itself until the round rests. For managers."""
    return render(request, "training/round_progress.html", progress_context(_round(project, number)))


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def start(request: Request, project: Project, number: int) -> HttpResponse:
    """Ask for confirmation, then start training. For managers."""
    round_ = _round(project, number)
    if request.method == "POST":
        return _act(request, round_, lambda: start_round(round_=round_, started_by=request.user))
    context = {"project": project, "round": round_, "material": material_of(round_)}
    return render(request, "training/round_start.html", context)


@require_POST
@project_page(role=Role.MANAGER)
def cancel(request: Request, project: Project, number: int) -> HttpResponse:
    """Stop what goes on; it can be taken up again. For managers."""
    round_ = _round(project, number)
    return _act(request, round_, lambda: cancel_round(round_=round_))


@require_POST
@project_page(role=Role.MANAGER)
def again(request: Request, project: Project, number: int) -> HttpResponse:
    """Go on where the round failed or was cancelled. For managers."""
    round_ = _round(project, number)
    return _act(request, round_, lambda: start_again(round_=round_))


@require_POST
@project_page(role=Role.MANAGER)
def reopen(request: Request, project: Project, number: int) -> HttpResponse:
    """Back to labelling: more judgments, or another recipe, then a start from the beginning. For managers."""
    round_ = _round(project, number)
    return _act(request, round_, lambda: reopen_round(round_=round_))


def progress_context(round_: Round) -> dict[str, Any]:
    """What the live part shows, with the addresses that it asks and posts to."""
    names = ("progress", "start", "cancel", "again", "reopen")
    address = [round_.project.slug, round_.number]
    return {
        "project": round_.project,
        "round": round_,
        "view": round_view(round_),
        "urls": {name: reverse(f"round-{name}", args=address) for name in names},
    }


def _round(project: Project, number: int) -> Round:
    rounds = Round.objects.select_related("project", "policy", "snapshot", "started_by")
    return get_object_or_404(rounds, project=project, number=number)


def _act(request: Request, round_: Round, action: Callable[[], None]) -> HttpResponse:
    try:
        action()
    except Refusal as refusal:
        messages.error(request, refusal.message)
    return redirect(round_)
