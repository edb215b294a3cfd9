"""Prompt sets: the list, one of them with the search for prompts to add, and the changes to it."""

from collections.abc import Sequence

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST, require_safe

from annotation.choices import Role, Split
from annotation.errors import Refusal
from annotation.models import Project
from annotation.views.access import Request, project_page
from training.forms.comparing import PromptSetForm
from training.models import PromptSet
from training.selectors.prompt_sets import prompt_sets_of, prompts_matching
from training.services.prompt_sets import (
    MOST_PROMPTS,
    add_prompts,
    create_prompt_set,
    delete_prompt_set,
    remove_prompts,
    rename_prompt_set,
)

_ON_A_PAGE = 50
_FOUND = 50
_LONGEST_ID = 18


@require_safe
@project_page(role=Role.MANAGER)
def prompt_sets(request: Request, project: Project) -> HttpResponse:
    """List the prompt sets of a project, with the form for a new one. For managers."""
    return _list(request, project, PromptSetForm())


@require_POST
@project_page(role=Role.MANAGER)
def create(request: Request, project: Project) -> HttpResponse:
    """Create a prompt set. For managers."""
    form = PromptSetForm(request.POST)
    if form.is_valid():
        try:
            made = create_prompt_set(project=project, created_by=request.user, **form.cleaned_data)
        except Refusal as refusal:
            form.add_error(refusal.field if refusal.field in form.fields else None, refusal.message)
        else:
            return redirect(made)
    return _list(request, project, form, status=422)


@require_safe
@project_page(role=Role.MANAGER)
def prompt_set(request: Request, project: Project, pk: int) -> HttpResponse:
    """Show the prompts of a set, and those of the project that a search finds. For managers."""
    return _prompt_set_page(
        request, _set(project, pk), PromptSetForm(initial={"name": _set(project, pk).name})
    )


@require_POST
@project_page(role=Role.MANAGER)
def change(request: Request, project: Project, pk: int) -> HttpResponse:
    """Rename a prompt set, add prompts to it or take them out. For managers."""
    prompt_set = _set(project, pk)
    form = PromptSetForm(request.POST if "name" in request.POST else None, initial={"name": prompt_set.name})
    try:
        if "name" in request.POST:
            if not form.is_valid():
                return _prompt_set_page(request, prompt_set, form, status=422)
            rename_prompt_set(prompt_set=prompt_set, changed_by=request.user, **form.cleaned_data)
            messages.success(request, _("Saved."))
        if added := _ids(request.POST.getlist("add")):
            number = add_prompts(prompt_set=prompt_set, prompts=added, changed_by=request.user)
            messages.success(
                request, ngettext("%(n)d prompt added.", "%(n)d prompts added.", number) % {"n": number}
            )
        if removed := _ids(request.POST.getlist("remove")):
            number = remove_prompts(prompt_set=prompt_set, prompts=removed, changed_by=request.user)
            messages.success(
                request, ngettext("%(n)d prompt removed.", "%(n)d prompts removed.", number) % {"n": number}
            )
    except Refusal as refusal:
        if refusal.field == "name":
            form.add_error("name", refusal.message)
            return _prompt_set_page(request, prompt_set, form, status=422)
        messages.error(request, refusal.message)
    return redirect(prompt_set)


@require_POST
@project_page(role=Role.MANAGER)
def delete(request: Request, project: Project, pk: int) -> HttpResponse:
    """Delete a prompt set; its prompts and the comparisons on them stay. For managers."""
    delete_prompt_set(prompt_set=_set(project, pk), deleted_by=request.user)
    messages.success(request, _("Prompt set deleted."))
    return redirect("prompt-sets", project.slug)


def _set(project: Project, pk: int) -> PromptSet:
    return get_object_or_404(PromptSet.objects.select_related("project"), pk=pk, project=project)


def _list(request: Request, project: Project, form: PromptSetForm, *, status: int = 200) -> HttpResponse:
    context = {"project": project, "form": form, "prompt_sets": prompt_sets_of(project)}
    return render(request, "training/comparing/prompt_sets.html", context, status=status)


def _prompt_set_page(
    request: Request, prompt_set: PromptSet, form: PromptSetForm, *, status: int = 200
) -> HttpResponse:
    project = prompt_set.project
    text, split = request.GET.get("find", "")[:200], request.GET.get("split", "")
    inside = prompt_set.prompts.order_by("pk")
    matching = prompts_matching(project, text, split=split if split in Split.values else "")
    candidates = list(matching.exclude(prompt_sets=prompt_set)[: _FOUND + 1])
    context = {
        "project": project,
        "set": prompt_set,
        "form": form,
        "page": Paginator(inside, _ON_A_PAGE).get_page(request.GET.get("page")),
        "candidates": candidates[:_FOUND],
        "more": len(candidates) > _FOUND,
        "find": text,
        "split": split,
        "splits": Split.choices,
        "most": MOST_PROMPTS,
        "query": {"find": text, "split": split},
    }
    return render(request, "training/comparing/prompt_set.html", context, status=status)


def _ids(texts: Sequence[str]) -> list[int]:
    """Return the readable ids; at most as many as a set holds."""
    numbers = [text for text in texts[: 2 * MOST_PROMPTS] if text.isascii() and text.isdecimal()]
    return [int(text) for text in numbers if len(text) <= _LONGEST_ID]
