"""Rubrics of a project: list, edit, versions with their differences, and use."""

from typing import Any

from django.contrib import messages
from django.db.models import BigIntegerField
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from annotation.choices import Role
from annotation.errors import Refusal
from annotation.forms.rubrics import RubricForm, criterion_forms, initial_of
from annotation.models import Project, Rubric, RubricVersion
from annotation.selectors.rubrics import changes_between, rubrics_of
from annotation.services.projects.rubrics import ask_rubric, publish_rubric, save_rubric
from annotation.views.access import Request, project_page


@require_safe
@project_page(role=Role.MANAGER)
def rubrics(request: Request, project: Project) -> HttpResponse:
    """List the rubrics. For managers."""
    rows = rubrics_of(project).prefetch_related("versions__criteria")
    return render(request, "annotation/rubrics/list.html", {"project": project, "rubrics": rows})


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def rubric_new(request: Request, project: Project) -> HttpResponse:
    """Write a rubric. For managers."""
    return _edited(request, project, None)


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def rubric_edit(request: Request, project: Project, pk: int) -> HttpResponse:
    """Edit a rubric: a save is a new version. For managers."""
    return _edited(request, project, _rubric(project, pk))


@require_safe
@project_page(role=Role.MANAGER)
def rubric(request: Request, project: Project, pk: int) -> HttpResponse:
    """A rubric: one version, what it changed, and the others. For managers."""
    row = _rubric(project, pk)
    versions = list(row.versions.select_related("created_by").prefetch_related("criteria"))
    shown = _version(versions, request.GET.get("version", "")) or versions[0]
    before = _version(versions, request.GET.get("against", ""))
    before = before or next((version for version in versions if version.number < shown.number), None)
    context = {
        "project": project,
        "rubric": row,
        "versions": versions,
        "shown": shown,
        "before": before,
        "changes": changes_between(before, shown) if before else [],
    }
    return render(request, "annotation/rubrics/rubric.html", context)


@require_POST
@project_page(role=Role.MANAGER)
def rubric_act(request: Request, project: Project, pk: int) -> HttpResponse:
    """Publish a version, or change whether annotators rate by it. For managers."""
    row = _rubric(project, pk)
    action = request.POST.get("action", "")
    try:
        if action == "publish":
            version = _version(list(row.versions.all()), request.POST.get("version", ""))
            if version is None:
                raise Refusal("unknown_rubric_version", _("The rubric has no such version."))
            publish_rubric(version=version, published_by=request.user)
            messages.success(request, _("Version %(number)s is published.") % {"number": version.number})
        elif action in ("ask", "stop"):
            ask_rubric(rubric=row, is_asked=action == "ask", by=request.user)
        else:
            raise Refusal("action_not_chosen", _("Choose one of the actions."))
    except Refusal as refusal:
        messages.error(request, refusal.message)
    return redirect(row)


def _edited(request: Request, project: Project, row: Rubric | None) -> HttpResponse:
    newest = row.versions.prefetch_related("criteria").first() if row else None
    form = RubricForm(request.POST or None, initial={"name": row.name if row else ""})
    criteria = criterion_forms(request.POST or None, initial_of(newest))
    if request.method == "POST" and form.is_valid() and criteria.is_valid():
        try:
            version = save_rubric(
                project=project,
                name=form.cleaned_data["name"],
                criteria=criteria.criteria,
                saved_by=request.user,
                rubric=row,
            )
        except Refusal as refusal:
            form.add_error("name" if refusal.field == "name" else None, refusal.message)
        else:
            messages.success(request, _("Saved as version %(number)s.") % {"number": version.number})
            return redirect(version.rubric)
    context = {"project": project, "rubric": row, "newest": newest, "form": form, "criteria": criteria}
    status = 422 if form.is_bound else 200
    return render(request, "annotation/rubrics/edit.html", context, status=status)


def _rubric(project: Project, pk: int) -> Rubric:
    row = rubrics_of(project).filter(pk=pk).first() if pk <= BigIntegerField.MAX_BIGINT else None
    if row is None:
        raise Http404
    return row


def _version(versions: list[RubricVersion], number: Any) -> RubricVersion | None:
    return next((version for version in versions if str(version.number) == number), None)
