"""Watched folders and buckets of a project."""

from django import forms
from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from annotation.choices import Role
from annotation.errors import Refusal
from annotation.exchange.sources import add_source, remove_source, set_source
from annotation.models import Project
from annotation.views.access import Request, project_page, refusals_shown

_LISTED = 20


class SourceForm(forms.Form):
    """A folder or bucket to watch."""

    address = forms.CharField(
        label=gettext_lazy("Folder or bucket"),
        max_length=500,
        help_text=gettext_lazy("An absolute folder on the server, or a URL such as s3://bucket/prompts."),
    )
    skip_bad = forms.BooleanField(label=gettext_lazy("Skip bad rows"), required=False)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def sources(request: Request, project: Project) -> HttpResponse:
    """List the watched folders and buckets with their files, and add one. For managers."""
    form = SourceForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            add_source(project=project, added_by=request.user, **form.cleaned_data)
        except Refusal as refusal:
            form.add_error("address", refusal.message)
        else:
            return redirect("sources", project.slug)
    watched = project.import_sources.select_related("project")
    context = {
        "project": project,
        "form": form,
        "sources": [
            (source, source.files.select_related("file_import")[:_LISTED], source.files.count())
            for source in watched
        ],
        "allowed": settings.RONDO_SOURCES,
    }
    status = 422 if request.method == "POST" else 200
    return render(request, "annotation/transfers/sources.html", context, status=status)


@require_POST
@project_page(role=Role.MANAGER)
def act(request: Request, project: Project, pk: int) -> HttpResponse:
    """Check a source now, pause it, or remove it. For managers."""
    source = get_object_or_404(project.import_sources.select_related("project"), pk=pk)
    with refusals_shown(request):
        match request.POST.get("action"):
            case "check" | "resume":
                set_source(source=source, active=True, changed_by=request.user)
                messages.success(request, _("It is checked as soon as a worker finds it."))
            case "pause":
                set_source(source=source, active=False, changed_by=request.user)
            case "remove":
                remove_source(source=source, removed_by=request.user)
                messages.success(request, _("Removed. What was imported stays."))
            case _:
                messages.error(request, _("Choose an action."))
    return redirect("sources", project.slug)
