"""Pages of live learning."""

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_safe

from annotation.choices import Role
from annotation.errors import Refusal
from annotation.models import Project
from annotation.views.access import Request, project_page
from training.forms.live import LiveForm
from training.selectors.live import live_view, median_seconds, updates_of
from training.selectors.rounds import questions_of_updates
from training.services.live import set_live


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def live(request: Request, project: Project) -> HttpResponse:
    """Settings of live learning, the policy of now, and the updates that led to it. For managers."""
    form = LiveForm(request.POST or None, project=project)
    if request.method == "POST" and form.is_valid():
        try:
            set_live(project=project, by=request.user, **form.cleaned_data)
        except Refusal as error:
            form.add_error(error.field if error.field in form.fields else None, error.message)
        else:
            messages.success(request, _("The settings of live learning are stored."))
            return redirect("live", project.slug)
    updates = updates_of(project)
    context = {
        "project": project,
        "form": form,
        "view": live_view(project),
        "updates": updates,
        "median": median_seconds(updates),
        "questions": questions_of_updates(project),
    }
    return render(request, "training/live.html", context, status=422 if form.errors else 200)


@require_safe
@project_page(role=Role.MANAGER)
def line(request: Request, project: Project) -> HttpResponse:
    """The line on the labelling screen, which asks for itself again. For managers."""
    context = {"project": project, "view": live_view(project)}
    return render(request, "training/live_line.html", context)
