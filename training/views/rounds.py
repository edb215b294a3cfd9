"""Pages of a round: steps, actions, recipe."""

import json
from dataclasses import replace
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_safe

from annotation.choices import Role
from annotation.errors import Refusal
from annotation.models import Project
from annotation.views.access import Request, project_page, refusals_shown
from training.models import Evaluation, Round
from training.recipe.auto import fixed_where_changed
from training.recipe.form import AUTO, Group, RecipeForm, flattened, with_policy
from training.recipe.recipe import POLICY, PRESETS, RIVAL, Recipe
from training.selectors.base_models import trainable_bases
from training.selectors.evaluations import evaluation_of, round_evaluator, summary_of
from training.selectors.lists import rounds_of_project
from training.selectors.projects import checkpoints_of
from training.selectors.round_help import help_in
from training.selectors.rounds import audit_of, chosen_settings, material_of, questions_of, round_view
from training.services.rounds.actions import (
    ACTIONS,
    RoundAction,
    can_retry_steps,
    facts_of,
    offered_actions,
    perform_action,
)
from training.services.rounds.base_choice import reward_base_of
from training.services.rounds.controls import draft_first_round
from training.services.rounds.dry_run import dry_run
from training.services.rounds.recipes import CAN_CHANGE, change_recipe

# ── Round ──


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
        "chosen": chosen_settings(round_),
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
        with refusals_shown(request):
            perform_action(action, round_=round_, actor=request.user, answers=request.POST)
        if not Round.objects.filter(pk=round_.pk).exists():
            messages.success(request, _("The round was deleted."))
            return redirect("rounds", project.slug)
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
        "questions": questions_of(round_),
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


# ── Recipe ──


SECTIONS = (
    (
        gettext_lazy("Prompts and responses"),
        ("prompts", "samplers", "ranking_size", "sampling", "ready_prompts", "seed"),
    ),
    (gettext_lazy("Start, budget and compute"), ("start", "budget", "compute")),
    (gettext_lazy("Training data"), ("reliability_weights", "ai_feedback", "first_passes", "feedback")),
    (gettext_lazy("Reward model"), ("reward_base", "reward")),
    (gettext_lazy("Policy"), ("policy_method", "policy")),
    (gettext_lazy("Evaluation"), ("evaluation",)),
    (gettext_lazy("Promotion"), ("promotion",)),
)
"""Which fields of a recipe stand together on the page; each stands in one section."""


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def recipe(request: Request, project: Project, number: int) -> HttpResponse:
    """Show a round's recipe with its estimate, save another one, open or start the round. For managers."""
    round_ = get_object_or_404(
        Round.objects.select_related("project", "policy"), project=project, number=number
    )
    if request.method != "POST":
        return _page(request, round_, RecipeForm(flattened(round_.parsed_recipe)))
    data: dict[str, list[str]] = {
        name: [str(value) for value in values] for name, values in request.POST.lists()
    }
    if "json" in data:
        return _save_json(request, round_, data["json"][-1])
    choice = data.get("policy-choice", [""])[0]
    if choice in (AUTO, *PRESETS) and ("show" in data or [choice] != data.get("policy-shown")):
        note = (
            _("The policy’s settings are chosen when training starts: look at the estimate, then save.")
            if choice == AUTO
            else _("The settings of %(name)s are shown: look at them, then save.")
            % {"name": PRESETS[choice][0]}
        )
        messages.info(request, note)
        return _page(request, round_, RecipeForm(with_policy(data, choice)))
    form = RecipeForm(data)
    if form.recipe is None:
        return _page(request, round_, form, status=422)
    action = next(
        (action for action in ACTIONS.values() if action.on_recipe_page and action.name in data), None
    )
    if action is not None:
        return _begin(request, round_, form.recipe, action) or _page(request, round_, form, status=422)
    return _save(request, round_, form.recipe) or _page(request, round_, form, status=422)


def _begin(request: Request, round_: Round, sent_recipe: Recipe, action: RoundAction) -> HttpResponse | None:
    """Open or start the round if its recipe is the one that was sent; else save that, for its estimate."""
    try:
        if change_recipe(round_=round_, recipe=sent_recipe, actor=request.user):
            messages.warning(
                request,
                _("The changed recipe is saved; nothing has started. Check its estimate, then press again."),
            )
            return redirect(address_of(action, round_))
        perform_action(action.name, round_=round_, actor=request.user, answers=request.POST)
    except Refusal as refusal:
        messages.error(request, refusal.message)
        return None
    return redirect(round_)


def _save_json(request: Request, round_: Round, text: str) -> HttpResponse:
    form = RecipeForm(flattened(round_.parsed_recipe))
    try:
        values = json.loads(text)
        sent = Recipe.from_json(values)
        saved = _save(request, round_, fixed_where_changed(round_.parsed_recipe, sent))
    except ValueError as error:
        return _page(request, round_, form, text=text, text_error=str(error), status=422)
    return saved or _page(request, round_, form, text=text, status=422)


def _save(request: Request, round_: Round, new_recipe: Recipe) -> HttpResponse | None:
    """Save and lead back to the page; None where the service refuses, with its words as a message."""
    try:
        changed = change_recipe(round_=round_, recipe=new_recipe, actor=request.user)
    except Refusal as refusal:
        messages.error(request, refusal.message)
        return None
    messages.success(request, _("The recipe is saved.") if changed else _("Nothing was changed."))
    return redirect("round-recipe", round_.project.slug, round_.number)


def _page(
    request: Request,
    round_: Round,
    form: RecipeForm,
    *,
    text: str | None = None,
    text_error: str = "",
    status: int = 200,
) -> HttpResponse:
    shown = form.recipe or round_.parsed_recipe
    whole = json.dumps(shown.to_json(), indent=2, ensure_ascii=False)
    context: dict[str, Any] = {
        "project": round_.project,
        "round": round_,
        "sections": [(title, _section(form, names)) for title, names in SECTIONS],
        "errors": form.errors,
        "whole_errors": form.whole.errors,
        "may_change": round_.state in CAN_CHANGE,
        "text": whole if text is None else text,
        "text_error": text_error,
        "method_choices": _method_choices(form),
        "method": form.sent("policy-choice")[:1],
        "method_shown": form.sent("policy-shown")[:1],
        "checkpoints": [
            POLICY,
            RIVAL,
            *checkpoints_of(round_.project, writing=True).values_list("name", flat=True),
        ],
        "bases": trainable_bases().values_list("name", flat=True),
        "dry_run": dry_run(round_=round_),
        "chosen": chosen_settings(round_),
    }
    if action := next((a for a in offered_actions(round_view(round_)) if a.on_recipe_page), None):
        context |= {"action": action, **facts_of(action, round_)}
    return render(request, "training/recipe.html", context, status=status)


def _section(form: RecipeForm, names: tuple[str, ...]) -> Group:
    """Some of a recipe's fields; a section that is one part alone is that part."""
    inputs = [field for name in names for field in form.whole.inputs if field.name == name]
    groups = [group for name in names for group in form.whole.groups if group.name == name]
    hidden = all(field.kind == "hidden" for field in inputs)
    if hidden and len(groups) == 1:
        return replace(groups[0], inputs=[*inputs, *groups[0].inputs])
    return Group(name="", label="", inputs=inputs, groups=groups)


def _method_choices(form: RecipeForm) -> list[tuple[str, str]]:
    custom_choices = (
        []
        if form.sent("policy-shown")[:1] != ["policy_gradient"]
        else [("policy_gradient", _("as it is set below"))]
    )
    auto = (AUTO, _("Automatic: by the number of annotations"))
    return [auto, *custom_choices, *((name, label) for name, (label, _make) in PRESETS.items())]
