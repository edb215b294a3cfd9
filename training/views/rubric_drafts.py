"""Drafts of rubrics by a model: request one, watch it, edit and save it."""

from django.contrib import messages
from django.db.models import BigIntegerField
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from annotation.choices import JobState, Role
from annotation.errors import Refusal
from annotation.forms.rubrics import RubricForm, criterion_forms
from annotation.models import Project
from annotation.views.access import Request, project_page
from training.forms.rubrics import RubricDraftForm
from training.models import RubricDraft
from training.services.rubric_drafts import request_draft, save_draft


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def drafts(request: Request, project: Project) -> HttpResponse:
    """The drafts of a project's rubrics, and a form for another. For managers."""
    form = RubricDraftForm(request.POST or None, project=project)
    if request.method == "POST" and form.is_valid():
        try:
            draft = request_draft(project=project, requested_by=request.user, **form.cleaned_data)
        except Refusal as error:
            form.add_error(error.field if error.field in form.fields else None, error.message)
        else:
            return redirect(draft)
    rows = project.rubric_drafts.select_related("project", "checkpoint", "version__rubric__project")
    context = {"project": project, "drafts": rows, "form": form}
    return render(request, "training/rubrics/drafts.html", context, status=422 if form.errors else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def draft(request: Request, project: Project, pk: int) -> HttpResponse:
    """A draft: its progress, the check of each criterion, and the form that saves it. For managers."""
    draft = _draft(project, pk)
    if request.htmx:
        answer = render(request, "training/rubrics/progress.html", {"project": project, "draft": draft})
        if not draft.goes_on:
            answer["HX-Refresh"] = "true"
        return answer
    return _edited(request, draft)


def _edited(request: Request, draft: RubricDraft) -> HttpResponse:
    # NumPy is loaded when somebody opens this page, not with the web server.
    from training.selectors.rubric_drafts import checked_criteria

    is_done = draft.state == JobState.FINISHED and draft.version_id is None
    checked = checked_criteria(draft)
    form = RubricForm(request.POST or None)
    criteria = criterion_forms(
        request.POST or None,
        [
            {name: criterion.values[name] for name in ("name", "text", "scale", "weight")}
            for criterion in checked
        ],
    )
    if request.method == "POST" and is_done and form.is_valid() and criteria.is_valid():
        try:
            version = save_draft(
                draft=draft,
                name=form.cleaned_data["name"],
                criteria=criteria.criteria,
                saved_by=request.user,
            )
        except Refusal as refusal:
            form.add_error("name" if refusal.field == "name" else None, refusal.message)
        else:
            messages.success(request, _("Saved as version %(number)s.") % {"number": version.number})
            return redirect(version.rubric)
    context = {
        "project": draft.project,
        "draft": draft,
        "checked": checked,
        "is_done": is_done,
        "form": form,
        "criteria": criteria,
    }
    return render(request, "training/rubrics/draft.html", context, status=422 if form.is_bound else 200)


def _draft(project: Project, pk: int) -> RubricDraft:
    rows = project.rubric_drafts.select_related("project", "checkpoint", "version__rubric__project")
    draft = rows.filter(pk=pk).first() if pk <= BigIntegerField.MAX_BIGINT else None
    if draft is None:
        raise Http404
    return draft
