"""Additional questions of a project: add, edit with a preview, and ask again. For managers."""

from dataclasses import replace
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods, require_POST

from annotation.choices import CategoryScope, Role
from annotation.errors import Refusal
from annotation.forms.questions import ProjectQuestionForm, initial_of_question
from annotation.models import Project, ProjectQuestion
from annotation.record.questions import Question
from annotation.selectors.configuration import configuration_of, in_groups
from annotation.services.projects.project_questions import (
    ask_again,
    ask_only_new,
    newest,
    save_question,
)
from annotation.views.access import Request, project_page
from annotation.views.labelling.questions import questions_on_screen


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def project_question_add(request: Request, project: Project) -> HttpResponse:
    """Add a question. For managers."""
    form = _form(request, project, None)
    if request.method == "POST" and form.is_valid() and _save(request, project, form):
        messages.success(request, _("Added: %(label)s.") % {"label": form.cleaned_data["text"]})
        return redirect(
            "project-question-add" if "another" in request.POST else "project-questions", project.slug
        )
    return _edited(request, project, form, None)


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def project_question_edit(request: Request, project: Project, key: str) -> HttpResponse:
    """Change a question; another meaning is a new version. For managers."""
    row = get_object_or_404(ProjectQuestion, project=project, key=key)
    form = _form(request, project, newest(row))
    if request.method == "POST" and form.is_valid() and _save(request, project, form):
        messages.success(request, _("Saved."))
        return redirect("project-questions", project.slug)
    return _edited(request, project, form, row)


@require_POST
@project_page(role=Role.MANAGER)
def project_question_preview(request: Request, project: Project, key: str = "") -> HttpResponse:
    """Show a question as it would be asked, without saving it. For managers; a fragment."""
    row = ProjectQuestion.objects.filter(project=project, key=key).first() if key else None
    form = _form(request, project, newest(row) if row else None)
    question = form.question if form.is_valid() else None
    context = {"places": _preview(question), "form": form}
    return render(request, "annotation/settings/question_preview.html", context)


@require_POST
@project_page(role=Role.MANAGER)
def project_question_again(request: Request, project: Project, key: str) -> HttpResponse:
    """Put a question again to who judged without it, or only to new judgments. For managers."""
    row = get_object_or_404(ProjectQuestion, project=project, key=key)
    if request.POST.get("action") == "only-new":
        ask_only_new(question=row, asked_by=request.user)
        messages.success(request, _("Only new annotations are asked: %(label)s.") % {"label": row.label})
    else:
        count = ask_again(question=row, asked_by=request.user)
        messages.success(
            request,
            ngettext(
                "%(count)s annotation goes back with this question: %(label)s.",
                "%(count)s annotations go back with this question: %(label)s.",
                count,
            )
            % {"count": count, "label": row.label},
        )
    return redirect("project-questions", project.slug)


def _form(request: Request, project: Project, changes: Question | None) -> ProjectQuestionForm:
    configured = configuration_of(project)
    questions = configured.questions
    keys = [question.key for question in questions]
    return ProjectQuestionForm(
        request.POST if request.method == "POST" else None,
        initial=initial_of_question(changes) if changes else None,
        earlier=questions[: keys.index(changes.key)] if changes else questions,
        changes=changes,
        used_keys=keys,
        categories=[
            (category.key, category.full_label)
            for category in in_groups(configured.categories)
            if category.scope == CategoryScope.SPAN
            and (not category.is_archived or (changes is not None and category.key in changes.categories))
        ],
    )


def _save(request: Request, project: Project, form: ProjectQuestionForm) -> bool:
    """Save the question; False where it is refused, which the form then says."""
    try:
        save_question(
            project=project, question=form.question, saved_by=request.user, is_new=form.changes is None
        )
    except Refusal as refusal:
        field = {"shown_values": "shown_when"}.get(refusal.field or "", refusal.field)
        form.add_error(field if field in form.fields else None, refusal.message)
        return False
    return True


def _preview(question: Question | None) -> list[Any]:
    """Return the question as it is asked of a comparison or of a response; none where it cannot be asked."""
    if question is None or (question.kind in ("choice", "choices") and not question.choices):
        return []
    shown = replace(question, subject="comparison", shown_when=None, is_archived=False)
    return questions_on_screen([shown], {}, {})


def _edited(
    request: Request, project: Project, form: ProjectQuestionForm, row: ProjectQuestion | None
) -> HttpResponse:
    changes = form.changes
    context = {
        "project": project,
        "form": form,
        "row": row,
        "question": changes,
        "places": _preview(form.question if form.is_bound and form.is_valid() else changes),
    }
    status = 422 if form.is_bound else 200
    return render(request, "annotation/settings/project_question.html", context, status=status)
