"""A project as a file: download it, compare a file with the project, apply it; create a project from one."""

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils.functional import Promise
from django.utils.text import slugify
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_http_methods, require_safe

from annotation.choices import Role
from annotation.errors import Refusal
from annotation.exchange.project_file import MOST_BYTES, ProjectFile, in_yaml, read, write
from annotation.models import Project
from annotation.selectors import access
from annotation.selectors.project_file import Change
from annotation.services.projects.project_file import digest_of
from annotation.text.edits import pieces
from annotation.views.access import Request, project_page

_LONGEST_DIFF = 20_000
_NAMES: dict[str, str | Promise] = {
    "added": gettext_lazy("added"),
    "removed": gettext_lazy("removed"),
    "changed": gettext_lazy("changed"),
}
_BADGES = {"added": "badge--good", "removed": "badge--bad", "changed": "badge--accent"}


class ProjectFileForm(forms.Form):
    """A file, uploaded or pasted."""

    upload = forms.FileField(
        required=False,
        label=gettext_lazy("File"),
        widget=forms.ClearableFileInput({"accept": ".yaml,.yml,application/yaml"}),
    )
    text = forms.CharField(
        required=False,
        strip=False,
        max_length=MOST_BYTES,
        label=gettext_lazy("Or its text"),
        widget=forms.Textarea(attrs={"rows": 16, "spellcheck": "false", "class": "file-text"}),
    )
    state = forms.CharField(required=False, max_length=64, widget=forms.HiddenInput)

    def clean(self) -> dict[str, Any]:
        """Read the upload into the text. Refuses neither and a file that is too large."""
        values: dict[str, Any] = super().clean() or {}
        upload = values.get("upload")
        if upload is not None:
            values["text"] = upload.read(MOST_BYTES + 1)
        if not values.get("text") and not self.errors:
            self.add_error("upload", _("Choose a file, or paste its text."))
        return values


class NewProjectFileForm(ProjectFileForm):
    """The same for a new project."""

    slug = forms.SlugField(
        max_length=80,
        label=gettext_lazy("Address"),
        help_text=gettext_lazy("Last part of the project’s address; it stays."),
    )
    field_order = ("slug", "upload", "text")


@require_safe
@project_page(role=Role.MANAGER)
def project_file_download(request: Request, project: Project) -> HttpResponse:
    """Download the project as a file. For managers."""
    response = HttpResponse(write(project), content_type="application/yaml; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{slugify(project.slug) or "project"}.yaml"'
    return response


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def project_file(request: Request, project: Project) -> HttpResponse:
    """Compare a file with the project, and apply it. For managers."""
    form = ProjectFileForm(request.POST or None, request.FILES or None)
    context: dict[str, Any] = {"project": project, "form": form}
    if request.method == "POST" and form.is_valid():
        try:
            file = read(form.cleaned_data["text"])
            if "apply" in request.POST:
                state = form.cleaned_data["state"]
                changes = file.apply(project=project, by=request.user, state=state)
                _tell(request, len(changes))
                return redirect("project-file", project.slug)
            context |= _compared(request, project, file)
        except Refusal as refusal:
            context["refusal"] = refusal.message
        context["form"] = _with_text(form)
    status = 422 if form.is_bound and "rows" not in context else 200
    return render(request, "annotation/settings/project_file.html", context, status=status)


@require_http_methods(["GET", "HEAD", "POST"])
def project_file_new(request: Request) -> HttpResponse:
    """Create a project from a file. For administrators, and who has the permission to add projects."""
    if not access.may_create_projects(request.user):
        raise PermissionDenied
    form = NewProjectFileForm(request.POST or None, request.FILES or None)
    context: dict[str, Any] = {"form": form}
    if request.method == "POST" and form.is_valid():
        try:
            slug = form.cleaned_data["slug"]
            project = read(form.cleaned_data["text"]).create(slug=slug, by=request.user)
        except Refusal as refusal:
            context |= {"refusal": refusal.message, "form": _with_text(form)}
        else:
            messages.success(request, _("Project created. Import prompts next, then invite annotators."))
            return redirect("project", project.slug)
    status = 422 if form.is_bound else 200
    return render(request, "annotation/settings/project_file_new.html", context, status=status)


def _compared(request: Request, project: Project, file: ProjectFile) -> dict[str, Any]:
    """Return the changes, the state that they are compared with, and why the file would be refused."""
    state = digest_of(project)
    compared: dict[str, Any] = {"rows": [_row(change) for change in file.compare(project)], "state": state}
    try:
        file.apply(project=project, by=request.user, rehearses=True)
    except Refusal as refusal:
        compared["refusal"] = refusal.message
    return compared


def _row(change: Change) -> dict[str, Any]:
    before, after = (None if value is None else in_yaml(value) for value in (change.before, change.after))
    shown = None
    if before is not None and after is not None and len(before) + len(after) <= _LONGEST_DIFF:
        # Of single lines both are shown whole.
        shown = pieces(before, after) if "\n" in before + after else None
    return {
        "path": change.path,
        "kind": _NAMES[change.kind],
        "badge": _BADGES[change.kind],
        "before": before,
        "after": after,
        "pieces": shown,
    }


def _with_text(form: ProjectFileForm) -> ProjectFileForm:
    """Return the form with the text of an upload in its field, so that the next step sends it again."""
    text = form.cleaned_data["text"]
    shown = text.decode("utf-8-sig", "replace") if isinstance(text, bytes) else text
    initial = {"text": shown, "slug": form.cleaned_data.get("slug")}
    return type(form)(initial=initial)


def _tell(request: Request, count: int) -> None:
    if count:
        sentence = ngettext("Applied: %(count)s change.", "Applied: %(count)s changes.", count)
        messages.success(request, sentence % {"count": count})
    else:
        messages.info(request, _("Nothing to change: the project is as the file says."))
