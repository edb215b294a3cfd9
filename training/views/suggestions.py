"""Suggestions of a project: their settings, the work that computes them, and what they do to annotators."""

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from annotation.choices import Role
from annotation.errors import Refusal
from annotation.models import Project
from annotation.views.access import Request, project_page
from training.forms.suggestions import SuggestionsForm
from training.models import SuggestionSource
from training.services.suggestions import set_suggestions


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def suggestions(request: Request, project: Project) -> HttpResponse:
    """Settings of suggestions, their progress, and the effect of help with intervals. For managers."""
    # NumPy is loaded when somebody opens this page, not with the web server.
    from annotation.statistics.help_page import HelpPage
    from annotation.statistics.help_report import help_report

    form = SuggestionsForm(request.POST or None, project=project)
    if request.method == "POST" and form.is_valid():
        try:
            set_suggestions(project=project, by=request.user, **form.cleaned_data)
        except Refusal as error:
            form.add_error(error.field if error.field in form.fields else None, error.message)
        else:
            messages.success(request, _("The settings of the suggestions are stored."))
            return redirect("suggestions", project.slug)
    source = SuggestionSource.objects.filter(project=project).select_related("checkpoint").first()
    context = {
        "project": project,
        "form": form,
        "source": source,
        "page": HelpPage(help_report(project)),
    }
    return render(request, "training/suggestions.html", context, status=422 if form.errors else 200)
