"""Questions of a project: what is asked, its criteria and its categories, for its managers."""

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from annotation.choices import CategoryScope, Granularity, Role
from annotation.errors import Refusal
from annotation.forms.questions import AskedForm, CategoryForm, CriterionForm, QuestionForm
from annotation.models import Category, Criterion, Project
from annotation.services.projects.projects import change_settings
from annotation.services.projects.questions import (
    add_question,
    archive_question,
    delete_question,
    move_question,
    set_category,
    set_criterion,
)
from annotation.views.access import Request, project_page


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """Categories or criteria: their pages and forms. URL names follow from `name`."""

    name: str
    model: type[Any]
    form: type[QuestionForm]
    page: str


CATEGORIES = Kind(
    name="category",
    model=Category,
    form=CategoryForm,
    page="project-categories",
)
CRITERIA = Kind(
    name="criterion",
    model=Criterion,
    form=CriterionForm,
    page="project-questions",
)


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def project_questions(request: Request, project: Project) -> HttpResponse:
    """Show and change what a project asks, and list its criteria. For managers."""
    # The form writes into its instance, and the service compares with what is stored.
    form = AskedForm(request.POST or None, instance=Project.objects.get(pk=project.pk))
    if request.method == "POST" and form.is_valid():
        try:
            change_settings(project=project, settings=form.cleaned_data, changed_by=request.user)
        except Refusal as refusal:
            form.add_error(refusal.field or None, refusal.message)
        else:
            messages.success(request, _("Saved."))
            return redirect("project-questions", project.slug)
    context = {"form": form, **_listed(project, CRITERIA)}
    status = 422 if form.is_bound else 200
    return render(request, "annotation/settings/questions.html", context, status=status)


@require_http_methods(["GET", "HEAD"])
@project_page(role=Role.MANAGER)
def project_categories(request: Request, project: Project) -> HttpResponse:
    """List the categories of spans and of missing information. For managers."""
    return render(request, "annotation/settings/categories.html", _listed(project, CATEGORIES))


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def question_add(request: Request, project: Project, kind: Kind) -> HttpResponse:
    """Add a category or a criterion. For managers."""
    form = kind.form(request.POST or None, initial=_initial(request))
    if request.method == "POST" and form.is_valid():
        values = dict(form.cleaned_data)
        key = values.pop("key")
        try:
            row = add_question(
                kind=kind.model, project=project, key=key, values=values, changed_by=request.user
            )
        except Refusal as refusal:
            form.add_error(refusal.field if refusal.field in form.fields else None, refusal.message)
        else:
            messages.success(request, _("Added: %(label)s.") % {"label": row.label})
            return redirect(kind.page, project.slug)
    return _edited(request, project, kind, form)


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def question_edit(request: Request, project: Project, kind: Kind, key: str) -> HttpResponse:
    """Change a category or a criterion. For managers."""
    row = get_object_or_404(kind.model, project=project, key=key)
    form = kind.form(request.POST or None, instance=row)
    if request.method == "POST" and form.is_valid():
        change = set_category if kind is CATEGORIES else set_criterion
        try:
            change(project=project, key=key, values=form.cleaned_data, changed_by=request.user)
        except Refusal as refusal:
            form.add_error(refusal.field if refusal.field in form.fields else None, refusal.message)
        else:
            messages.success(request, _("Saved."))
            return redirect(kind.page, project.slug)
    return _edited(request, project, kind, form, row)


@require_POST
@project_page(role=Role.MANAGER)
def question_change(request: Request, project: Project, kind: Kind, key: str) -> HttpResponse:
    """Move, archive, restore or delete a category or a criterion. For managers."""
    row = get_object_or_404(kind.model.objects.select_related("project"), project=project, key=key)
    action = request.POST.get("action", "")
    error = ""
    try:
        if action in ("up", "down"):
            move_question(question=row, by=-1 if action == "up" else 1, changed_by=request.user)
        elif action in ("archive", "restore"):
            archive_question(question=row, archived=action == "archive", changed_by=request.user)
        elif action == "delete":
            delete_question(question=row, deleted_by=request.user)
        else:
            error = _("Choose one of the actions.")
    except Refusal as refusal:
        error = refusal.message
    if request.htmx:
        context = {**_listed(project, kind), "error": error}
        return render(
            request, "annotation/settings/question_list.html", context, status=422 if error else 200
        )
    if error:
        messages.error(request, error)
    return redirect(kind.page, project.slug)


def _listed(project: Project, kind: Kind) -> dict[str, Any]:
    rows = kind.model.objects.filter(project=project).order_by("position", "id")
    return {
        "project": project,
        "rows": rows,
        "kind": kind.name,
        "edit_url": kind.name,
        "change_url": f"{kind.name}-change",
    }


def _initial(request: Request) -> dict[str, Any]:
    """Return the first values of a category of the scope in `?scope=`."""
    if request.GET.get("scope") == CategoryScope.MISSING:
        return {"scope": CategoryScope.MISSING, "granularity": Granularity.WHOLE}
    return {}


def _edited(
    request: Request,
    project: Project,
    kind: Kind,
    form: QuestionForm,
    row: Category | Criterion | None = None,
) -> HttpResponse:
    if kind is CATEGORIES:
        title = _("Edit category") if row else _("New category")
    else:
        title = _("Edit criterion") if row else _("New criterion")
    context = {
        "project": project,
        "title": title,
        "form": form,
        "row": row,
        "list_url": kind.page,
        "change_url": f"{kind.name}-change",
    }
    return render(request, "annotation/settings/question.html", context, status=422 if form.is_bound else 200)
