"""A round's page: where it is, live, and what may be done to it, each deed after a question."""

import json
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from annotation.choices import Role
from annotation.errors import Refusal
from annotation.models import Project
from annotation.views.access import Request, project_page
from training.models import Evaluation, Round
from training.selectors.evaluation_words import summary_of
from training.selectors.evaluations import evaluation_of
from training.selectors.lists import rounds_of_project
from training.selectors.round_help import help_in
from training.selectors.rounds import audit_of, material_of, round_view
from training.selectors.validation import round_evaluator
from training.services.rounds import draft_first_round
from training.services.rounds.actions import (
    ACTIONS,
    RoundAction,
    can_retry_steps,
    facts_of,
    offered_actions,
    perform_action,
)
from training.services.rounds.base_choice import reward_base_of


@require_safe
@project_page(role=Role.MANAGER)
def round_page(request: Request, project: Project, number: int) -> HttpResponse:
    """The round with its steps, judgments, recipe and what was done to it. For managers."""
    if number == 1 and not project.rounds.exists():
        return redirect("round-draft", project.slug)
    round_ = _round(project, number)
    evaluation = evaluation_of(round_)
    context = {
        "rounds": project.rounds.order_by("number"),
        "recipe": json.dumps(round_.recipe, indent=2),
        "entries": audit_of(round_),
        "material": material_of(round_),
        "reward_base": reward_base_of(round_),
        **progress_context(round_, evaluation),
    }
    return render(request, "training/round.html", context)


@require_safe
@project_page(role=Role.MANAGER)
def progress(request: Request, project: Project, number: int) -> HttpResponse:
    """The part of the page that changes by itself; it asks for itself until the round rests. For managers."""
    round_ = _round(project, number)
    evaluation = evaluation_of(round_) if round_.verdict else None
    return render(request, "training/round_progress.html", progress_context(round_, evaluation))


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def draft(request: Request, project: Project) -> HttpResponse:
    """Ask for confirmation, then draft the project's first round. For managers."""
    if request.method == "POST":
        return redirect(draft_first_round(project=project, created_by=request.user))
    return render(request, "training/round_draft.html", {"project": project})


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def act(request: Request, project: Project, number: int, action: str) -> HttpResponse:
    """Ask for confirmation, then do it; show a refusal on the round's page. For managers.

    The page of the recipe asks for opening and starting.
    """
    round_ = _round(project, number)
    round_action = ACTIONS[action]
    if request.method == "POST":
        try:
            perform_action(action, round_=round_, actor=request.user, answers=request.POST)
        except Refusal as refusal:
            messages.error(request, refusal.message)
        return redirect(round_)
    if round_action.on_recipe_page:
        return redirect(address_of(round_action, round_))
    context = {
        "project": project,
        "round": round_,
        "action": round_action,
        "back": round_.get_absolute_url(),
        **facts_of(round_action, round_, step=request.GET.get("step", "")),
    }
    return render(request, "training/round_question.html", context)


def progress_context(round_: Round, evaluation: Evaluation | None) -> dict[str, Any]:
    """Return the context of the live part, with the addresses that it asks and links to."""
    address = [round_.project.slug, round_.number]
    view = round_view(round_)
    offered = offered_actions(view)
    return {
        "project": round_.project,
        "round": round_,
        "view": view,
        "evaluator": round_evaluator(round_),
        "evaluation": evaluation,
        "help": None if view.is_going_on else help_in(evaluation),
        "summary": summary_of(evaluation),
        "buttons": [(action, address_of(action, round_)) for action in offered],
        "progress_url": reverse("round-progress", args=address),
        "retry_url": reverse("round-retry", args=address) if can_retry_steps(view) else "",
    }


def address_of(action: RoundAction, round_: Round) -> str:
    """Return the address of the page that asks whether to do it."""
    args = [round_.project.slug, round_.number]
    if action.on_recipe_page:
        return reverse("round-recipe", args=args) + "#begin"
    return reverse(f"round-{action.name}", args=args)


def _round(project: Project, number: int) -> Round:
    rounds = Round.objects.select_related("project", "policy", "snapshot", "started_by")
    return get_object_or_404(rounds, project=project, number=number)


@require_safe
@project_page(role=Role.MANAGER)
def rounds(request: Request, project: Project) -> HttpResponse:
    """List a project's rounds, newest first. For managers."""
    context = {"project": project, "rows": rounds_of_project(project)}
    return render(request, "training/rounds.html", context)
