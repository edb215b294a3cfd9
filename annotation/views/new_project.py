"""The page that creates a project."""

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from annotation.errors import Refusal
from annotation.exchange.uploads import create_with_upload
from annotation.forms.new_project import NewProjectForm
from annotation.selectors import access
from annotation.services.projects.templates import TEMPLATES
from annotation.views.access import Request

_FIELDS_OF_REFUSALS = {"file": "upload"}


@require_http_methods(["GET", "HEAD", "POST"])
def project_new(request: Request) -> HttpResponse:
    """Create a project from a template. For administrators, and who has the permission to add projects."""
    if not access.may_create_projects(request.user):
        raise PermissionDenied
    template = request.GET.get("template", "")
    form = NewProjectForm(
        request.POST or None,
        request.FILES or None,
        initial={"template": template} if template in TEMPLATES else None,
    )
    if request.method == "POST" and form.is_valid():
        try:
            project, record = create_with_upload(**form.cleaned_data, created_by=request.user)
        except Refusal as refusal:
            field = _FIELDS_OF_REFUSALS.get(refusal.field or "", refusal.field)
            form.add_error(field if field in form.fields else None, refusal.message)
        else:
            if record is not None:
                messages.success(request, _("Project created. Check the preview, then import the file."))
                return redirect("transfer", project.slug, record.pk)
            messages.success(request, _("Project created. Import prompts next, then invite annotators."))
            return redirect("transfers", project.slug)
    # The radio buttons and their templates, in one order.
    choices = list(zip(form["template"], TEMPLATES.values(), strict=True))
    status = 422 if form.is_bound else 200
    return render(request, "annotation/settings/new.html", {"form": form, "choices": choices}, status=status)
