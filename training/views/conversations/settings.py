"""A manager's settings of conversations, and the opening tasks."""

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from annotation.choices import Role
from annotation.errors import Refusal
from annotation.models import ConversationTask, Project
from annotation.services.conversations import archive_task, save_task
from annotation.views.access import Request, project_page
from training.forms.conversations import ConversationSettingsForm, ConversationTaskForm
from training.selectors.conversations import settings_of
from training.services.conversations import save_conversation_settings


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def conversation_settings(request: Request, project: Project) -> HttpResponse:
    """Show and change how annotators talk with checkpoints. For managers."""
    stored = settings_of(project)
    if request.method != "POST":
        form = ConversationSettingsForm(project=project, initial=ConversationSettingsForm.values_of(stored))
        return _settings(request, project, form)
    form = ConversationSettingsForm(request.POST, project=project)
    if form.is_valid():
        try:
            save_conversation_settings(project=project, actor=request.user, **form.cleaned_data)
        except Refusal as refusal:
            form.add_error(refusal.field if refusal.field in form.fields else None, refusal.message)
        else:
            messages.success(request, _("Saved."))
            return redirect("conversation-settings", project.slug)
    return _settings(request, project, form, status=422)


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def conversation_task_add(request: Request, project: Project) -> HttpResponse:
    """Add an opening task. For managers."""
    return _task(request, project, None)


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def conversation_task(request: Request, project: Project, pk: int) -> HttpResponse:
    """Change an opening task. For managers."""
    return _task(request, project, get_object_or_404(project.conversation_tasks, pk=pk))


@require_POST
@project_page(role=Role.MANAGER)
def conversation_task_archive(request: Request, project: Project, pk: int) -> HttpResponse:
    """Offer an opening task no more; conversations about it stay. For managers."""
    archive_task(task=get_object_or_404(project.conversation_tasks, pk=pk), actor=request.user)
    messages.success(request, _("Task archived."))
    return redirect("conversation-settings", project.slug)


def _settings(
    request: Request, project: Project, form: ConversationSettingsForm, *, status: int = 200
) -> HttpResponse:
    context = {
        "project": project,
        "form": form,
        "tasks": project.conversation_tasks.filter(archived_at__isnull=True),
    }
    return render(request, "training/conversations/settings.html", context, status=status)


def _task(request: Request, project: Project, task: ConversationTask | None) -> HttpResponse:
    initial = ConversationTaskForm.values_of(task) if task else None
    form = ConversationTaskForm(request.POST if request.method == "POST" else None, initial=initial)
    if form.is_valid():
        try:
            save_task(project=project, actor=request.user, task=task, **form.cleaned_data)
        except Refusal as refusal:
            form.add_error(refusal.field if refusal.field in form.fields else None, refusal.message)
        else:
            messages.success(request, _("Saved."))
            return redirect("conversation-settings", project.slug)
    context = {"project": project, "form": form, "task": task}
    status = 422 if form.is_bound else 200
    return render(request, "training/conversations/task.html", context, status=status)
